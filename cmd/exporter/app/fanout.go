package app

import (
	"context"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/source"
)

// fanOut sends what a source observes to its pipelines. It waits until all of them have room, and then places a delta in all of them at
// once. So a commit captures the delta in all pipelines or in none.
type fanOut struct {
	pipelines []*pipeline.Pipeline // at most [source.MaxPipelines]
	committer *checkpoint.Committer
	secure    func(context.Context) // waits for a standby and the Lease; nil without replicas
}

var _ source.Handler = (*fanOut)(nil)

// setPipelines sets the options that depend on the pipelines: their names, and what is retained for them.
func (f *fanOut) setPipelines(options *source.Options) {
	retention := &shape.Retention{}
	for n, p := range f.pipelines {
		options.Pipelines = append(options.Pipelines, p.Name())
		if retention.Add(p.Shaper()) {
			options.RetainFor |= 1 << n
		}
		if p.AnnouncesLeaving() {
			options.Announcing |= 1 << n
		}
	}
	options.Retain, options.RetainPolicy = retention.Retain, retention.Policy()
}

// Delta implements [source.Handler].
func (f *fanOut) Delta(ctx context.Context, d *delta.Delta, to source.Recipients, record func(passed source.PipelineSet)) error {
	var few [4]pipeline.Ticket
	tickets := few[:0]
	var passed source.PipelineSet
	named := d // as the last pipeline got it
	for n, p := range f.pipelines {
		var ticket pipeline.Ticket // the zero value is for nothing
		passes := false
		switch {
		case !to.Pipelines.Has(n):
		case to.RecordOnly.Has(n):
			passes = p.Shaper().Passes(d)
		default:
			named = to.For(n, d, named)
			var err error
			if ticket, err = p.Reserve(ctx, named, to.Have.Has(n)); err != nil {
				f.cancel(tickets)
				return err
			}
			passes = ticket.Passes()
		}
		if passes {
			passed |= 1 << n
		}
		tickets = append(tickets, ticket)
	}
	f.take(tickets, func() { record(passed) })
	return nil
}

func (f *fanOut) take(tickets []pipeline.Ticket, record func()) {
	f.Update(func() {
		for n, ticket := range tickets {
			f.pipelines[n].Take(ticket)
		}
		record()
	})
}

func (f *fanOut) cancel(tickets []pipeline.Ticket) {
	for n, ticket := range tickets {
		f.pipelines[n].Cancel(ticket)
	}
}

// Update implements [source.Handler].
func (f *fanOut) Update(change func()) { f.committer.WithoutCapture(change) }

// Gap implements [source.Handler].
func (f *fanOut) Gap(ctx context.Context, g *delta.Gap, record func()) error {
	var tickets []pipeline.Ticket
	for _, p := range f.pipelines {
		ticket, err := p.ReserveGap(ctx, g)
		if err != nil {
			f.cancel(tickets)
			return err
		}
		tickets = append(tickets, ticket)
	}
	f.take(tickets, record)
	return nil
}

// Recipient implements [source.Handler].
func (f *fanOut) Recipient(n int) source.Recipient { return recipient{f, f.pipelines[n]} }

// recipient is one pipeline of a source.
type recipient struct {
	fan *fanOut
	*pipeline.Pipeline
}

// Offer implements [source.Recipient].
func (r recipient) Offer(ctx context.Context, d *delta.Delta, have bool, record func(passed bool)) bool {
	ticket, ok := r.Pipeline.Offer(ctx, d, have)
	if ok {
		r.fan.Update(func() {
			r.Take(ticket)
			record(ticket.Passes())
		})
	}
	return ok
}

// Lacking implements [source.Recipient].
func (r recipient) Lacking(watch string, sequence uint64) source.Lacking {
	return source.Lacking(r.Pipeline.Lacking(watch, sequence))
}

// OfferMark implements [source.Recipient].
func (r recipient) OfferMark(m *delta.Mark, record func()) bool {
	ticket, ok := r.Pipeline.OfferMark(m)
	if ok {
		r.fan.Update(func() {
			r.Take(ticket)
			record()
		})
	}
	return ok
}

// Exclusive implements [source.Handler].
func (f *fanOut) Exclusive(do func()) { f.committer.Exclusive(do) }

// Commit implements [source.Handler].
func (f *fanOut) Commit(ctx context.Context) error {
	err := f.committer.Commit(ctx)
	if err == nil && f.secure != nil {
		f.secure(ctx)
	}
	return err
}
