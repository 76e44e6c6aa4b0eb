package pipeline

import (
	"slices"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// batch is what one Deliver call gets: records, and the items and objects they came from, index by index. An object
// that has several items in a batch has them in order.
type batch struct {
	objects []*objectQueue
	items   []*item
	records []sinks.Record
	bytes   int64
	// probe is set if the batch is sent to see whether the breaker can be reset.
	probe bool
	// apart is set if all objects are of one namespace, which is or was suspect, and suspect if the call counts as one of a suspect namespace.
	apart, suspect bool
	// turn is that of its last probe, if it holds several namespaces.
	turn int
	// begun is when the last call began; zero before the first.
	begun time.Time
	// tries counts the calls so far.
	tries int
	// successesBefore is the number of deliveries that had succeeded when the batch was first sent, or last failed.
	successesBefore uint64
	// due is when a batch that failed may be tried again.
	due time.Time
	// arena holds the bodies of the records.
	arena []byte
	// closed is set if the batch takes no more, though it is not full: what comes next does not fit, or is isolated.
	closed bool
}

// batches pools batches for reuse, since sinks keep nothing of a record. It saves more than half of the allocations for a delta.
var batches = sync.Pool{New: func() any { return new(batch) }}

// maxArena is the largest arena that is kept; a larger one was made for a large object. append grows an arena beyond its content,
// so this is four times Kafka's default batch.
const maxArena = 4 << 20

func newBatch() *batch { return batches.Get().(*batch) } //nolint:forcetypeassert // as above

func (p *Pipeline) full(b *batch) bool {
	return b.closed || len(b.records) >= p.options.Limits.MaxRecords || b.bytes >= p.options.Limits.MaxBytes || b.alone()
}

// alone reports whether the batch holds an isolated object, which is sent alone.
func (b *batch) alone() bool {
	return len(b.objects) > 0 && b.objects[len(b.objects)-1].isolated
}

// behind returns the last record before record n that the sink may hold it back for: one of its object, or of a notice's collection; -1 for
// none.
func (b *batch) behind(n int) int {
	if n > 0 && b.objects[n] == b.objects[n-1] {
		return n - 1
	}
	if !b.items[n].notice() {
		return -1
	}
	for n, key := n-1, b.records[n].Key; n >= 0; n-- {
		if b.records[n].Key == key {
			return n
		}
	}
	return -1
}

func (b *batch) severalNamespaces() bool {
	return slices.ContainsFunc(b.objects, func(o *objectQueue) bool { return o.namespace() != b.objects[0].namespace() })
}

// recycle returns a batch to the pool. No sink may be reading its records. p.mu is held.
func (p *Pipeline) recycle(b *batch) {
	p.budget.encoded -= int64(len(b.arena))
	clear(b.objects)
	clear(b.items)
	clear(b.records)
	if cap(b.arena) > maxArena {
		b.arena = nil
	}
	*b = batch{objects: b.objects[:0], items: b.items[:0], records: b.records[:0], arena: b.arena[:0]}
	batches.Put(b)
}
