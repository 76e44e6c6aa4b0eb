package pipeline

import (
	"context"
	"time"
)

// maxBuffered bounds the bytes of deltas that wait for a commit to write them to the log, in a pipeline that spills.
const maxBuffered = 4 << 20

// room accounts for the memory of a backlog. The pipeline's mutex guards it.
type room struct {
	// memory is what the backlog holds, and what is reserved for it.
	memory int64
	// buffered is what waits for a commit.
	buffered int64
	// next waits for more room than is usually freed at once; others that came later wait behind it.
	next *item
	// freed is closed, and made anew, when there may be room again and somebody waits for it.
	freed   chan struct{}
	waiting int
	// full says that somebody had to wait, and nobody has found room since.
	full bool
	// hasty says that the sink was too slow for a snapshot to keep to its pace.
	hasty bool
}

const (
	// maxAhead is how far, in bytes, a snapshot is read ahead of its delivery. More would take memory, and a place in the
	// log with each commit, to no end: the API server keeps what is not read.
	maxAhead = 4 << 20
	// patience is how long a snapshot waits for a quarter of that to be delivered, and less in proportion where a backlog
	// has less memory. A sink that takes longer, or stands still, would hold up the other pipelines of the source, and the
	// changes behind the snapshot.
	patience = 250 * time.Millisecond
)

// pace keeps the reading of a snapshot to the speed of its delivery, if that is a good one.
func (p *Pipeline) pace(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ahead := min(maxAhead, p.options.MaxBytes/2)
	if p.room.memory <= ahead/2 {
		p.room.hasty = false
	}
	if p.room.memory <= ahead || p.room.hasty {
		return
	}
	timer := time.NewTimer(patience * time.Duration(ahead) / maxAhead)
	defer timer.Stop()
	for p.room.memory > ahead*3/4 {
		freed := p.room.freed
		p.room.waiting++
		p.mu.Unlock()
		select {
		case <-freed:
		case <-timer.C:
			p.mu.Lock()
			p.room.hasty = true
			return
		case <-ctx.Done():
			p.mu.Lock()
			return
		}
		p.mu.Lock()
	}
}

// reserve makes room for an item: in memory, or before the log if the pipeline spills.
func (p *Pipeline) reserve(ctx context.Context, i *item) error {
	i.size = p.sizeOf(i.size)
	for {
		p.mu.Lock()
		if (p.room.next == nil || p.room.next == i) && p.tryReserve(i) {
			p.leave(i)
			relieved := p.room.full && p.room.memory <= p.options.MaxBytes/2
			p.room.full = p.room.full && !relieved
			p.mu.Unlock()
			if relieved {
				p.logger.Info("the backlog has room again")
			}
			return nil
		}
		if !p.room.full {
			p.room.full = true
			p.logger.Warn("the backlog is full; its sources wait until something is delivered", "waiting", p.ledger.waiting)
		}
		if p.room.next == nil && i.size <= p.options.MaxBytes/2 { // a larger one might wait for what never goes
			p.room.next = i
		}
		freed := p.room.freed
		p.room.waiting++
		p.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			p.mu.Lock()
			p.leave(i)
			p.mu.Unlock()
			return context.Cause(ctx)
		}
	}
}

// leave lets those behind an item that waits no more go on.
func (p *Pipeline) leave(i *item) {
	if p.room.next == i {
		p.room.next = nil
		p.announceRoom()
	}
}

func (p *Pipeline) tryReserve(i *item) bool {
	if p.log.behind == 0 && p.room.memory+i.size <= p.options.MaxBytes {
		p.room.memory += i.size
		return true
	}
	if p.options.Spill && p.room.buffered+i.size <= maxBuffered && p.log.bytes+p.room.buffered+i.size <= p.options.MaxDiskBytes {
		i.buffered = true
		p.room.buffered += i.size
		return true
	}
	return false
}

// sizeOf is what an item of so many bytes counts: one that is larger than a bound may pass, alone.
func (p *Pipeline) sizeOf(size int64) int64 { return min(size, p.options.MaxBytes, maxBuffered) }

// vacate gives an item's room back.
func (p *Pipeline) vacate(i *item) {
	if i.buffered {
		p.room.buffered -= i.size
	} else {
		p.room.memory -= i.size
	}
	p.announceRoom()
}

// announceRoom wakes whoever waits for room, and the reader of the log.
func (p *Pipeline) announceRoom() {
	if p.room.waiting > 0 {
		close(p.room.freed)
		p.room.freed, p.room.waiting = make(chan struct{}), 0
	}
	if p.log.behind > 0 {
		p.log.wakeReader()
	}
}
