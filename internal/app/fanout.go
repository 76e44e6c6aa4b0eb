package app

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// fanOut hands what a source observes to each of its pipelines: it waits until all have room, then hands over at once,
// so that a commit sees a delta in all of its pipelines or in none.
type fanOut struct {
	pipelines []*pipeline.Pipeline
	names     []string // of the pipelines
	keeper    pipeline.Keeper
	state     *state
}

var _ source.Handler = (*fanOut)(nil)

func (f *fanOut) add(p *pipeline.Pipeline) {
	f.pipelines = append(f.pipelines, p)
	f.names = append(f.names, p.Name())
	f.keeper.Serve(p)
}

// Takers implements [source.Handler].
func (f *fanOut) Takers() []string { return f.names }

// Keep implements [source.Handler].
func (f *fanOut) Keep(resource schema.GroupVersionResource, object *delta.Object) *delta.Object {
	return f.keeper.Keep(resource, object)
}

// Keeps implements [source.Handler].
func (f *fanOut) Keeps() string { return f.keeper.String() }

// Delta implements [source.Handler].
func (f *fanOut) Delta(ctx context.Context, d *delta.Delta, to source.Audience, then func(passed []string)) error {
	var few [4]pipeline.Ticket
	tickets := few[:0]
	for n, p := range f.pipelines {
		if to.Only != nil && !slices.Contains(to.Only, f.names[n]) {
			tickets = append(tickets, pipeline.Ticket{})
			continue
		}
		ticket, err := p.Reserve(ctx, d, to.Before == nil || slices.Contains(to.Before, f.names[n]))
		if err != nil {
			f.cancel(tickets)
			return err
		}
		tickets = append(tickets, ticket)
	}
	passed := f.passed(func(n int) bool { return tickets[n].Passes() })
	f.take(tickets, func() { then(passed) })
	return nil
}

// Gap implements [source.Handler].
func (f *fanOut) Gap(ctx context.Context, g *delta.Gap, then func()) error {
	var tickets []pipeline.Ticket
	for _, p := range f.pipelines {
		ticket, err := p.ReserveGap(ctx, g)
		if err != nil {
			f.cancel(tickets)
			return err
		}
		tickets = append(tickets, ticket)
	}
	f.take(tickets, then)
	return nil
}

func (f *fanOut) cancel(tickets []pipeline.Ticket) {
	for n, ticket := range tickets {
		f.pipelines[n].Cancel(ticket)
	}
}

func (f *fanOut) take(tickets []pipeline.Ticket, then func()) {
	f.state.hand(func() {
		for n, ticket := range tickets {
			f.pipelines[n].Take(ticket)
		}
		then()
	})
}

// Passes implements [source.Handler].
func (f *fanOut) Passes(d *delta.Delta) []string {
	return f.passed(func(n int) bool { return f.pipelines[n].Passes(d) })
}

// passed names the pipelines for which passes is true; nil are all of them.
func (f *fanOut) passed(passes func(n int) bool) []string {
	var names []string
	all := true
	for n, name := range f.names {
		if passes(n) {
			if !all {
				names = append(names, name)
			}
			continue
		}
		if all {
			all, names = false, append([]string{}, f.names[:n]...)
		}
	}
	return names
}

// Update implements [source.Handler].
func (f *fanOut) Update(change func()) { f.state.hand(change) }

// Commit implements [source.Handler].
func (f *fanOut) Commit(ctx context.Context) error { return f.state.commit(ctx) }
