package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/s2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/delta"
)

// An entry is a JSON head with its length before it, and behind it the object's JSON, compressed. The object is
// nearly all of it; s2 halves it at about a microsecond per kilobyte.

// head is what an entry holds beside the object.
type head struct {
	Type     delta.Type                   `json:"t,omitempty"`
	Resource *schema.GroupVersionResource `json:"r,omitempty"`
	Watch    string                       `json:"w,omitempty"`
	Observed int64                        `json:"o"` // Unix nanoseconds
	Snapshot bool                         `json:"s,omitempty"`
	Inferred bool                         `json:"i,omitempty"`
	Unknown  bool                         `json:"u,omitempty"`
	Attempts int                          `json:"a,omitempty"`
	Failed   int64                        `json:"f,omitempty"`
	Error    string                       `json:"e,omitempty"`
	Gap      *delta.Gap                   `json:"g,omitempty"`
}

var errEntry = errors.New("malformed log entry")

// maxObject bounds what a damaged length may ask for.
const maxObject = 64 << 20

func encodeEntry(e *delta.Entry) ([]byte, error) {
	h := head{Attempts: e.Attempts, Gap: e.Gap, Error: e.Unsendable}
	if !e.Failed.IsZero() {
		h.Failed = e.Failed.UnixNano()
	}
	var object []byte
	if d := e.Delta; d != nil {
		h.Type, h.Resource, h.Watch, h.Observed = d.Type, &d.Resource, d.Watch, d.Observed.UnixNano()
		h.Snapshot, h.Inferred, h.Unknown = d.Snapshot, d.Inferred, d.FinalStateUnknown
		object = d.Object.JSON()
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, binary.MaxVarintLen64+len(text)+s2.MaxEncodedLen(len(object)))
	out = binary.AppendUvarint(out, uint64(len(text)))
	out = append(out, text...)
	if e.Delta == nil {
		return out, nil
	}
	return append(out, s2.Encode(nil, object)...), nil
}

// decodeEntry reads an entry; data may be reused afterwards.
func decodeEntry(seq uint64, data []byte) (delta.Entry, error) {
	length, n := binary.Uvarint(data)
	if n <= 0 || length > uint64(len(data)-n) {
		return delta.Entry{}, errEntry
	}
	var h head
	if err := json.Unmarshal(data[n:n+int(length)], &h); err != nil {
		return delta.Entry{}, fmt.Errorf("%w: %w", errEntry, err)
	}
	e := delta.Entry{Seq: seq, Gap: h.Gap, Attempts: h.Attempts, Unsendable: h.Error}
	if h.Failed != 0 {
		e.Failed = time.Unix(0, h.Failed)
	}
	if h.Gap != nil {
		return e, nil
	}
	compressed := data[n+int(length):]
	if size, err := s2.DecodedLen(compressed); err != nil || size > maxObject || h.Resource == nil {
		return delta.Entry{}, errEntry
	}
	raw, err := s2.Decode(nil, compressed)
	if err != nil {
		return delta.Entry{}, fmt.Errorf("%w: %w", errEntry, err)
	}
	object, err := delta.NewObject(raw)
	if err != nil {
		return delta.Entry{}, fmt.Errorf("%w: %w", errEntry, err)
	}
	e.Delta = &delta.Delta{
		Type: h.Type, Resource: *h.Resource, Watch: h.Watch, Object: object, Observed: time.Unix(0, h.Observed),
		Snapshot: h.Snapshot, Inferred: h.Inferred, FinalStateUnknown: h.Unknown,
	}
	return e, nil
}
