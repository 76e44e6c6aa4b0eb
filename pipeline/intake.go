package pipeline

import (
	"context"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// This file takes deltas in. They are shaped before they wait, so the backlog and the log hold what will be sent, and nothing
// unredacted.

// Ticket is room for one delta, gap or mark. Call Take or Cancel exactly once. The zero value holds no room, and needs no call.
type Ticket struct {
	item     *item
	filtered bool
	filter   int // the index of the filter, if filtered
	passes   bool
	spoils   *delta.Delta // of a snapshot that lacks it, though the pipeline has the object; nil if none does
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
	t := p.ticket(ctx, d, had)
	if t.filtered {
		return t, nil
	}
	if d.Snapshot {
		p.pace(ctx)
	}
	return t, p.reserve(ctx, t.item)
}

// ticket returns the ticket of a delta, for which no room is reserved yet. A filter that looks at more than the object leaves a snapshot
// without what exists.
func (p *Pipeline) ticket(ctx context.Context, d *delta.Delta, had bool) Ticket {
	shaped := p.shaper.Shape(ctx, d, had)
	t := Ticket{passes: shaped.Passes}
	if shaped.Delta != nil {
		t.item = newItem(delta.Entry{Delta: shaped.Delta})
		t.item.err = shaped.Err
		return t
	}
	t.filtered, t.filter = true, shaped.FilteredBy
	if d.Snapshot && t.passes {
		t.spoils = d
	}
	return t
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
