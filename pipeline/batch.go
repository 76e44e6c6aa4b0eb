package pipeline

import (
	"errors"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	sched "github.com/kubeferry/kubeferry/pipeline/flow"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// batch is what one Deliver call gets: records, and the items that they came from, index by index.
type batch struct {
	*sched.Batch
	items   []*item
	records []sinks.Record
	bytes   int64
	// attempts are those of the items before the call.
	attempts []int
	// took is how long the call took; 0 if there was none.
	took time.Duration
	// unread is set if deltas have to be read from the log before the records can be made.
	unread bool
	// most is how many records the rate allows; 0 for no bound.
	most int
	// arena holds the bodies of the records.
	arena []byte
	fits  func(*sched.Item) bool
}

// maxArena is the largest arena that is kept; a larger one was made for a large object. append grows an arena beyond its content,
// so this is four times Kafka's default batch.
const maxArena = 4 << 20

// newBatch returns an empty batch. They are reused, since sinks keep nothing of a record: that saves more than half of the allocations for a delta.
func (p *Pipeline) newBatch() *batch {
	b, ok := p.pool.Get().(*batch)
	if !ok {
		b = &batch{}
		b.fits = func(i *sched.Item) bool { return p.appendRecord(b, itemOf(i)) }
	}
	return b
}

// recycle returns a batch to the pool. No sink may be reading its records. p.mu is held.
func (p *Pipeline) recycle(b *batch) {
	p.budget.encoded -= int64(len(b.arena))
	clear(b.items)
	clear(b.records)
	if cap(b.arena) > maxArena {
		b.arena = nil
	}
	*b = batch{items: b.items[:0], records: b.records[:0], attempts: b.attempts[:0], arena: b.arena[:0], fits: b.fits}
	p.pool.Put(b)
}

// appendRecord adds an item to a batch, and reports whether there was room for it. p.mu is held.
func (p *Pipeline) appendRecord(b *batch, i *item) bool {
	first := len(b.items) == 0
	if b.most > 0 && len(b.items) == b.most {
		return false
	}
	if !first {
		last := b.items[len(b.items)-1]
		if last.Ref == i.Ref && last.needsLetter() && !i.needsLetter() { // it would be sent before the letter is written
			return false
		}
	}
	most := p.options.Limits.MaxBytes
	if i.stub {
		size := 2 * i.size // about, with its envelope
		if !first && (b.bytes+size > most || p.budget.memory+i.size > p.options.MaxBytes) {
			return false
		}
		p.unstub(i)
		b.bytes += size
		b.unread = true
		b.records = append(b.records, sinks.Record{})
	} else {
		record, arena, err := p.encoder.Encode(b.arena, &delta.Entry{Delta: i.delta, Gap: i.gap, Mark: i.mark})
		if i.noBody = errors.Is(err, shape.ErrNoBody); err != nil && !i.noBody {
			i.err = err
		}
		grown := b.bytes + int64(record.Size())
		if !first && grown > most || i.notice() && b.has(record.Key) {
			return false
		}
		p.budget.encoded += int64(len(arena) - len(b.arena))
		b.bytes, b.arena = grown, arena
		b.records = append(b.records, record)
	}
	i.inBatch = true
	b.items = append(b.items, i)
	return true
}

// has reports whether a batch holds a record with a key. Those of one object do. But the gaps and marks of a collection have one key, and are
// different objects to the scheduler: if one fails, the sink holds back those behind it, and they would count as failed, too.
func (b *batch) has(key string) bool {
	return slices.ContainsFunc(b.records, func(r sinks.Record) bool { return r.Key == key })
}
