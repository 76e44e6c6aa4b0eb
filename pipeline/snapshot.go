package pipeline

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file is what snapshots need of a pipeline: they come in at its pace, and beside live changes only as far as these leave room.

// Offer is Reserve for a snapshot that others must not wait for: it returns false at once if there is no room for it. A snapshot
// takes no more than a part of the memory, and nothing on disk, unless its flow is stopped: what is not read of it costs nothing.
func (p *Pipeline) Offer(ctx context.Context, d *delta.Delta, had bool) (Ticket, bool) {
	t := p.ticket(ctx, d, had)
	if t.filtered {
		return t, true
	}
	i := t.item
	i.size = p.sizeOf(i.size)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.besideFull(p.beside()) || i.size > p.free(nil) || !p.tryReserve(i) {
		p.budget.noRoomFor, p.budget.noRoomBehind = i.size, p.stopped(i)
		return Ticket{}, false
	}
	return t, true
}

// OfferMark makes room for the mark of a snapshot, or returns false at once if there is none.
func (p *Pipeline) OfferMark(m *delta.Mark) (Ticket, bool) {
	i := newItem(delta.Entry{Mark: m})
	i.size = p.sizeOf(i.size)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.budget.queue) > 0 || !p.tryReserve(i) {
		p.budget.noRoomFor, p.budget.noRoomBehind = i.size, false
		return Ticket{}, false
	}
	return Ticket{item: i}, true
}

// Room waits until most of what an Offer found in its way is delivered. It returns an error only when ctx ends first.
func (p *Pipeline) Room(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.besideFull(min(p.beside()*3/4, p.options.MaxBytes/4)) || p.budget.noRoomFor > p.free(nil) ||
		p.budget.noRoomBehind && !p.fitsBuffer(p.budget.noRoomFor) {
		if !p.awaitFreed(ctx) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// Settled waits until all that was taken of a watch before the call is settled, and all that the last run left. It returns an error only
// when ctx ends first. One call at a time may be made for a watch.
func (p *Pipeline) Settled(ctx context.Context, watch string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	settled := p.counts.countBefore(watch, p.log.next)
	for p.log.former > 0 || !settled() {
		if !p.awaitFreed(ctx) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// Lacking is what a snapshot lacks.
type Lacking struct {
	// Objects are the REST paths of those whose records are dead letters, in no order.
	Objects []string
	// More is set if there are others, Mark if the mark is a dead letter.
	More, Mark bool
	// Unreadable is set if an entry of the last run's log could not be read: a snapshot that the last run began may lack anything.
	Unreadable bool
}

// Lacking returns what the snapshot of a watch that has a sequence lacks, as far as this run knows.
func (p *Pipeline) Lacking(watch string, sequence uint64) Lacking {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := Lacking{Unreadable: p.counts.unreadable > 0}
	if w := p.counts.watches[watch]; w != nil && w.sequence == sequence {
		all.Objects, all.More, all.Mark = slices.Collect(maps.Keys(w.dead)), w.more || p.counts.unreadable > w.first, w.markDied
	}
	return all
}

const (
	// maxAhead is how far, in bytes, a snapshot is read ahead of its delivery. Reading faster
	// only costs memory and log writes: the API server keeps what is not read.
	maxAhead = 4 << 20
	// maxBeside is the same for a snapshot beside live changes. More of it would take the CPU time that their delivery needs:
	// docs/performance.md.
	maxBeside = 64 << 10
	// paceTimeout is how long a snapshot waits for a quarter of that to be delivered, and less in proportion where a backlog
	// has less memory. A sink that takes longer, or stands still, would hold up the other pipelines of the source, and the
	// changes behind the snapshot.
	paceTimeout = 250 * time.Millisecond
)

// pace delays a snapshot while more than maxAhead bytes of it wait, unless the sink is too slow.
func (p *Pipeline) pace(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ahead := p.ahead()
	if p.unstuck() <= ahead/2 {
		p.budget.unpaced = false
	}
	if p.unstuck() <= ahead || p.budget.unpaced {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, paceTimeout*time.Duration(ahead)/maxAhead)
	defer cancel()
	for p.unstuck() > ahead*3/4 {
		if !p.awaitFreed(ctx) {
			p.budget.unpaced = true
			return
		}
	}
}

// unstuck is what the backlog holds in memory, without what it keeps of records that left it.
func (p *Pipeline) unstuck() int64 { return p.budget.memory - p.budget.stuck }

// ahead is how far a snapshot is read ahead in this pipeline.
func (p *Pipeline) ahead() int64 { return min(maxAhead, p.options.MaxBytes/2) }

// beside is how far a snapshot beside live changes is read ahead in this pipeline. While the sink is away nothing else takes CPU
// time, and a record of the snapshot may be the one that gets through. p.mu is held.
func (p *Pipeline) beside() int64 {
	if !p.awaySince.IsZero() {
		return p.options.MaxBytes / 4
	}
	return min(maxBeside, p.options.MaxBytes/2)
}

// besideFull reports whether a snapshot beside live changes has to wait: more waits than a limit, not counting the records of failing
// objects, which may be there for as long as the sink refuses them. p.mu is held.
func (p *Pipeline) besideFull(limit int64) bool {
	return len(p.budget.queue) > 0 || p.log.flowsWait() ||
		p.unstuck()-p.budget.failing > limit || p.budget.memory > p.options.MaxBytes/2
}
