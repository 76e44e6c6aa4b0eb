package pipeline

import (
	"hash/maphash"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// lastDelivered has when a record of an object was last delivered, for traces. It has room for a fixed number of objects, each of which
// may take the place of another.
type lastDelivered []struct {
	object uint64 // a hash
	at     int64  // in nanoseconds since 1970
}

const lastDeliveredObjects = 8 << 10

var lastDeliveredSeed = maphash.MakeSeed()

func newLastDelivered() lastDelivered { return make(lastDelivered, lastDeliveredObjects) }

func (l lastDelivered) set(ref delta.Ref, at time.Time) {
	object := maphash.Comparable(lastDeliveredSeed, ref)
	slot := &l[object%uint64(len(l))]
	slot.object, slot.at = object, at.UnixNano()
}

// LastDelivered returns when a record of an object was last delivered; zero if that was not since the start, or if it is not kept.
func (p *Pipeline) LastDelivered(ref delta.Ref) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	object := maphash.Comparable(lastDeliveredSeed, ref)
	if slot := p.lastDelivered[object%uint64(len(p.lastDelivered))]; slot.object == object && slot.at != 0 {
		return time.Unix(0, slot.at)
	}
	return time.Time{}
}
