package source

import (
	"github.com/klauspost/compress/s2"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// previous is what is retained of an object for its next change: its JSON, compressed; nil for nothing. A known set of
// Pods with it takes about half of their JSON (BenchmarkPrevious: zstd saves another quarter and costs three times
// as much).
type previous []byte

// newPrevious compresses an object; it returns nil for nil.
func newPrevious(object *delta.Object) previous {
	if object == nil {
		return nil
	}
	packed := s2.Encode(nil, object.JSON())
	return append(make(previous, 0, len(packed)), packed...) // the encoder's buffer is as large as the worst case
}

// object unpacks the previous version; nil if nothing was retained, or if it cannot be read, which a checksum of the
// state directory's pages makes unlikely: then the previous version is unknown.
func (p previous) object() *delta.Object {
	if p == nil {
		return nil
	}
	raw, err := s2.Decode(nil, p)
	if err != nil {
		return nil
	}
	object, err := delta.NewObject(raw)
	if err != nil {
		return nil
	}
	return object
}
