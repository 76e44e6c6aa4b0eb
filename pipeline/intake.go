package pipeline

import (
	"context"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// This file takes deltas in. They are shaped before they wait, so the backlog and the log hold what will be sent, and nothing
// unredacted.

// Ticket is room for one delta, gap or mark. Call Take or Cancel exactly once. The zero value is for none.
type Ticket struct {
	item     *item
	filtered bool
	filter   int // the index of the filter, if filtered
	passes   bool
	spoils   *delta.Delta // of a snapshot that lacks it, though the pipeline has the object; nil if none does
}

// filteredTicket is for a delta that a filter keeps back. A filter that looks at more than the object leaves a snapshot without what exists.
func filteredTicket(d *delta.Delta, passes bool, filter int) Ticket {
	t := Ticket{filtered: true, filter: filter, passes: passes}
	if d.Snapshot && passes {
		t.spoils = d
	}
	return t
}

// Passes reports whether the filters let the object pass, whether or not this change of it is sent.
func (t Ticket) Passes() bool { return t.passes }

// Reserve applies the filters and transforms to a delta and reserves room for it. had is set if the pipeline has the
// object: its filters let the previous version pass. Reserve blocks while the backlog is full, and returns an error only
// when ctx ends first.
func (p *Pipeline) Reserve(ctx context.Context, d *delta.Delta, had bool) (Ticket, error) {
	if shape.IsLarge(d) { // each watch may have one; a pipeline takes one at a time, until there is room for the item
		select {
		case p.large <- struct{}{}:
			defer func() { <-p.large }()
		case <-ctx.Done():
			return Ticket{}, context.Cause(ctx)
		}
	}
	i, passes, filter := p.makeItem(ctx, d, had)
	if i == nil {
		return filteredTicket(d, passes, filter), nil
	}
	if d.Snapshot {
		p.pace(ctx)
	}
	return Ticket{item: i, passes: passes}, p.reserve(ctx, i)
}

// makeItem makes the item of a delta, nil if a filter keeps it back.
func (p *Pipeline) makeItem(ctx context.Context, d *delta.Delta, had bool) (i *item, passes bool, filter int) {
	shaped := p.shaper.Shape(ctx, d, had)
	if shaped.Delta == nil {
		return nil, shaped.Passes, shaped.FilteredBy
	}
	i = newItem(delta.Entry{Delta: shaped.Delta})
	i.err = shaped.Err
	return i, shaped.Passes, 0
}

// AnnouncesLeaving reports whether the pipeline sends a DELETED of what leaves its selection.
func (p *Pipeline) AnnouncesLeaving() bool { return p.options.OnLeave == shape.OnLeaveDeleted }

// ReserveGap makes room for a gap.
func (p *Pipeline) ReserveGap(ctx context.Context, g *delta.Gap) (Ticket, error) {
	i := newItem(delta.Entry{Gap: g})
	return Ticket{item: i}, p.reserve(ctx, i)
}

// Take hands over what the ticket was made for. It never blocks.
func (p *Pipeline) Take(t Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.filtered {
		p.counts.Received++
		p.counts.Filtered++
		p.counts.filteredBy[t.filter]++
		if d := t.spoils; d != nil {
			p.counts.spoil(d.Watch, d.SnapshotSequence)
		}
		return
	}
	if t.item == nil {
		return
	}
	p.place(t.item)
	p.counts.take(t.item)
}

// Cancel gives the room back.
func (p *Pipeline) Cancel(t Ticket) {
	if t.item == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeMemory(t.item)
}
