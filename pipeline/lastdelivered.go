package pipeline

import (
	"hash/maphash"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// lastDelivered has when a record of an object was last delivered, for traces. It has room for a fixed number of objects, each of which
// takes the place of the one before with the same place.
type lastDelivered []struct {
	object uint64 // a hash
	at     int64  // in nanoseconds since 1970
}

const lastDeliveredObjects = 16 << 10

var lastDeliveredSeed = maphash.MakeSeed()

func (l lastDelivered) set(ref delta.Ref, at time.Time) {
	object := maphash.Comparable(lastDeliveredSeed, ref)
	place := &l[object%lastDeliveredObjects]
	place.object, place.at = object, at.UnixNano()
}

// LastDelivered returns when a record of an object was last delivered. It is zero if none was delivered since the start, or if the pipeline
// has forgotten it: it remembers at most lastDeliveredObjects objects.
func (p *Pipeline) LastDelivered(ref delta.Ref) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	object := maphash.Comparable(lastDeliveredSeed, ref)
	if place := p.lastDelivered[object%lastDeliveredObjects]; place.object == object && place.at != 0 {
		return time.Unix(0, place.at)
	}
	return time.Time{}
}
