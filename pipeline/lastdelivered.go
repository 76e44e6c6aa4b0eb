package pipeline

import (
	"hash/maphash"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// lastDelivered has when a record of an object was last delivered, for traces. It has room for a fixed number of objects, each of which
// takes the oldest of a few places that it shares with others.
type lastDelivered [][4]struct {
	object uint64 // a hash
	at     int64  // in nanoseconds since 1970
}

const lastDeliveredObjects = 8 << 10

var lastDeliveredSeed = maphash.MakeSeed()

func newLastDelivered() lastDelivered { return make(lastDelivered, lastDeliveredObjects/4) }

func (l lastDelivered) set(ref delta.Ref, at time.Time) {
	object := maphash.Comparable(lastDeliveredSeed, ref)
	slots := &l[object%uint64(len(l))]
	chosen := &slots[0]
	for n := range slots {
		if slots[n].object == object {
			chosen = &slots[n]
			break
		}
		if slots[n].at < chosen.at {
			chosen = &slots[n]
		}
	}
	chosen.object, chosen.at = object, at.UnixNano()
}

// LastDelivered returns when a record of an object was last delivered; zero if that was not since the start, or if it is not kept.
func (p *Pipeline) LastDelivered(ref delta.Ref) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	object := maphash.Comparable(lastDeliveredSeed, ref)
	for _, slot := range p.lastDelivered[object%uint64(len(p.lastDelivered))] {
		if slot.object == object && slot.at != 0 {
			return time.Unix(0, slot.at)
		}
	}
	return time.Time{}
}
