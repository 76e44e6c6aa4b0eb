package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/jsonscan"
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
	Of       uint64                       `json:"y,omitempty"` // SnapshotSequence
	Inferred bool                         `json:"i,omitempty"`
	Unknown  bool                         `json:"u,omitempty"`
	Bare     bool                         `json:"b,omitempty"`
	Custom   bool                         `json:"x,omitempty"`
	Sequence uint64                       `json:"z,omitempty"`
	Restored int                          `json:"h,omitempty"`
	Error    string                       `json:"e,omitempty"`
	Gap      *delta.Gap                   `json:"g,omitempty"`
	Mark     *delta.Mark                  `json:"k,omitempty"`
	// Identity is the object's: a pipeline may have removed it from the JSON, or the JSON cannot be read any more.
	Identity *identity `json:"n,omitempty"`
	// ChangedBy is [delta.Object.StoredChangedBy].
	ChangedBy json.RawMessage `json:"q,omitempty"`
	// Sum is the checksum of the bytes after the head, uncompressed.
	Sum uint32 `json:"m,omitempty"`
	// Difference is set if the delta has one. Its OldObject and Patch, each with its length before it, stand before the
	// object's JSON.
	Difference *difference `json:"d,omitempty"`
}

type identity struct {
	APIVersion      string    `json:"v"`
	Kind            string    `json:"k"`
	Namespace       string    `json:"s,omitempty"`
	Name            string    `json:"n"`
	UID             types.UID `json:"u"`
	ResourceVersion string    `json:"r"`
}

// object returns an object that holds no more than the identity.
func (i *identity) object() *delta.Object {
	return delta.NewIdentity(schema.FromAPIVersionAndKind(i.APIVersion, i.Kind), i.Namespace, i.Name, i.UID, i.ResourceVersion)
}

type difference struct {
	Known              bool   `json:"k,omitempty"`
	OldResourceVersion string `json:"r,omitempty"`
	OldObject          int    `json:"o,omitempty"` // length
	Patch              int    `json:"p,omitempty"` // length
}

var (
	errEntry = errors.New("malformed log entry")
	errSum   = fmt.Errorf("%w: its checksum is wrong", errEntry)
)

// maxObject bounds what stands behind the head of an entry, before it is compressed, and so the memory that a damaged length may
// allocate. No object is nearly as large.
const maxObject = 64 << 20

func sum(object []byte) uint32 { return crc32.Checksum(object, crc32.MakeTable(crc32.Castagnoli)) }

func encodeEntry(e *delta.Entry) ([]byte, error) {
	h := head{Gap: e.Gap, Mark: e.Mark, Error: e.Unsendable}
	var object []byte
	if d := e.Delta; d != nil {
		h.Type, h.Resource, h.Watch, h.Observed = d.Type, &d.Resource, d.Watch, d.Observed.UnixNano()
		h.Snapshot, h.Inferred, h.Unknown, h.Bare = d.Snapshot, d.Inferred, d.FinalStateUnknown, d.Bare
		h.Sequence, h.Restored = d.Sequence, d.Restored
		h.Custom, h.Of, h.ChangedBy = d.Custom, d.SnapshotSequence, d.Object.StoredChangedBy()
		if object = h.pack(d); len(object) > maxObject { // it could not be read back
			h.Error = fmt.Sprintf("it takes %d bytes, more than the %d that the log takes", len(object), maxObject)
			h.Difference, h.Bare = nil, true
			object = d.Object.Identity().JSON()
		}
		h.Sum = sum(object)
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
	compressed := s2.Encode(out[len(out):cap(out)], object) // there is room for it, so that it is written there
	out = out[:len(out)+len(compressed)]
	if len(out) < cap(out)/2 { // it is kept until the commit is written, with those of other objects
		out = bytes.Clone(out)
	}
	return out, nil
}

// encodedEntries encodes the entries of a commit. Pipelines on one source mostly wait for the very same deltas: each is
// encoded once.
type encodedEntries map[*delta.Delta][]byte

func (c encodedEntries) encode(e *delta.Entry) ([]byte, error) {
	if e.Delta == nil || e.Unsendable != "" {
		return encodeEntry(e)
	}
	encoded, ok := c[e.Delta]
	if ok {
		return encoded, nil
	}
	encoded, err := encodeEntry(e)
	c[e.Delta] = encoded
	return encoded, err
}

// pack puts into the head what the object's JSON may lack, and returns that JSON behind the JSON of the difference.
func (h *head) pack(d *delta.Delta) []byte {
	o, diff := d.Object, d.Difference
	h.Identity = &identity{o.APIVersion(), o.Kind(), o.Namespace(), o.Name(), o.UID(), o.ResourceVersion()}
	if diff == nil {
		return o.JSON()
	}
	h.Difference = &difference{diff.Known, diff.OldResourceVersion, len(diff.OldObject), len(diff.Patch)}
	return slices.Concat(diff.OldObject, diff.Patch, o.JSON())
}

// valid reports whether what goes out as it is is JSON: a damaged page must not become a wrong record. The patch of an object as deep as the
// API server takes is deeper than encoding/json reads.
func valid(text []byte) bool {
	s := jsonscan.NewScanner(text)
	return s.Skip() == nil && s.End() == nil
}

// unpack is the reverse of pack.
func (h *head) unpack(raw []byte) (*delta.Object, *delta.Difference, error) {
	var diff *delta.Difference
	if d := h.Difference; d != nil {
		if d.OldObject < 0 || d.Patch < 0 || d.OldObject > len(raw) || d.Patch > len(raw)-d.OldObject {
			return nil, nil, errEntry
		}
		diff = &delta.Difference{Known: d.Known, OldResourceVersion: d.OldResourceVersion}
		if d.OldObject > 0 {
			diff.OldObject = raw[:d.OldObject:d.OldObject]
		}
		if raw = raw[d.OldObject:]; d.Patch > 0 {
			diff.Patch = raw[:d.Patch:d.Patch]
		}
		raw = raw[d.Patch:]
		if diff.OldObject != nil && !valid(diff.OldObject) || diff.Patch != nil && !valid(diff.Patch) {
			return nil, nil, errEntry
		}
	}
	if !valid(raw) {
		return nil, nil, errEntry
	}
	return h.Identity.object().WithJSON(raw), diff, nil
}

// delta returns what the head holds of a delta.
func (h *head) delta() *delta.Delta {
	return &delta.Delta{
		Type: h.Type, Resource: *cmp.Or(h.Resource, &schema.GroupVersionResource{}), Watch: h.Watch, Observed: time.Unix(0, h.Observed),
		Snapshot: h.Snapshot, SnapshotSequence: h.Of, Inferred: h.Inferred, FinalStateUnknown: h.Unknown, Bare: h.Bare, Custom: h.Custom,
		Sequence: h.Sequence, Restored: h.Restored,
	}
}

func decodeHead(data []byte) (h head, rest []byte, err error) {
	length, n := binary.Uvarint(data)
	if n <= 0 || length > uint64(len(data)-n) {
		return head{}, nil, errEntry
	}
	if err := json.Unmarshal(data[n:n+int(length)], &h); err != nil {
		return head{}, nil, fmt.Errorf("%w: %w", errEntry, err)
	}
	return h, data[n+int(length):], nil
}

// damagedEntry stands for an entry that cannot be read: it becomes a dead letter, with what can be read of its identity.
func damagedEntry(at delta.LogKey, data []byte, cause error) delta.Entry {
	h, _, _ := decodeHead(data) // what it holds is all that is known
	d := h.delta()
	if d.Type == "" {
		d.Type, d.Observed = delta.Modified, time.Now()
	}
	d.Object, d.Bare = cmp.Or(h.Identity, &identity{}).object(), true
	return delta.Entry{LogKey: at, Delta: d, Unsendable: fmt.Sprintf("entry %d of the log cannot be read: %v", at.Seq, cause)}
}

// readEntry reads an entry. A damaged one becomes a dead letter; see damagedEntry. data may be reused afterwards.
func readEntry(at delta.LogKey, data []byte) delta.Entry {
	entry, err := decodeEntry(at, data)
	if err != nil {
		return damagedEntry(at, data, err)
	}
	return entry
}

func decodeEntry(at delta.LogKey, data []byte) (delta.Entry, error) {
	h, compressed, err := decodeHead(data)
	if err != nil {
		return delta.Entry{}, err
	}
	e := delta.Entry{LogKey: at, Gap: h.Gap, Mark: h.Mark, Unsendable: h.Error}
	if h.Gap != nil || h.Mark != nil {
		return e, nil
	}
	if size, err := s2.DecodedLen(compressed); err != nil || size > maxObject || h.Resource == nil || h.Identity == nil {
		return delta.Entry{}, errEntry
	}
	raw, err := s2.Decode(nil, compressed)
	if err != nil {
		return delta.Entry{}, fmt.Errorf("%w: %w", errEntry, err)
	}
	if h.Sum != sum(raw) {
		return delta.Entry{}, errSum
	}
	object, diff, err := h.unpack(raw)
	if err != nil {
		return delta.Entry{}, err
	}
	e.Delta = h.delta()
	e.Delta.Object, e.Delta.Difference = object.WithChangedBy(h.ChangedBy), diff
	return e, nil
}
