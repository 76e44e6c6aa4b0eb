package pipeline

import (
	"context"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file is the way in: what is always on, filters, transforms and the difference are applied before a delta waits.
// So what waits, in memory or in the log, is what will be sent, and nothing unredacted is ever kept.

// Ticket is room for one delta or gap. Call Take or Cancel exactly once. The zero value is for none.
type Ticket struct {
	item     *item
	filtered bool
	passes   bool
}

// Passes reports whether the filters let the object pass, whether or not this change of it is sent.
func (t Ticket) Passes() bool { return t.passes }

// Reserve applies the filters and transforms to a delta and reserves room for it. had is set if the pipeline has the
// object: its filters let the previous version pass. Reserve blocks while the backlog is full, and returns an error only
// when ctx ends first.
func (p *Pipeline) Reserve(ctx context.Context, d *delta.Delta, had bool) (Ticket, error) {
	c := &Change{pipeline: p, observed: d}
	passes, takes := p.applyFilters(c, had)
	if !takes {
		return Ticket{filtered: true, passes: passes}, nil
	}
	shaped, err := c.shape(ctx)
	if d.Snapshot {
		p.pace(ctx)
	}
	i := newItem(shaped, nil)
	i.err = err
	return Ticket{item: i, passes: passes}, p.reserve(ctx, i)
}

// Passes reports whether the filters let a delta's object pass; nothing is handed over.
func (p *Pipeline) Passes(d *delta.Delta) bool {
	passes, _ := p.applyFilters(&Change{pipeline: p, observed: d}, false)
	return passes
}

// AnnouncesLeaving reports whether the pipeline sends a DELETED of what leaves its selection.
func (p *Pipeline) AnnouncesLeaving() bool { return p.options.OnLeave == OnLeaveDeleted }

// ReserveGap makes room for a gap; the deltas of its watch that follow wait until it is settled.
func (p *Pipeline) ReserveGap(ctx context.Context, g *delta.Gap) (Ticket, error) {
	i := newItem(nil, g)
	return Ticket{item: i}, p.reserve(ctx, i)
}

// Take hands over what the ticket was made for. It never blocks.
func (p *Pipeline) Take(t Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.filtered {
		p.counts.Received++
		p.counts.Filtered++
		return
	}
	if t.item == nil {
		return
	}
	p.counts.take(t.item)
	p.place(t.item)
}

// Cancel gives the room back.
func (p *Pipeline) Cancel(t Ticket) {
	if t.item == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(t.item)
}
