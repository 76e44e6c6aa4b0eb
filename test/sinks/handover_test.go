package sinks_test

import (
	"context"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
)

// handOver hands a delta to a pipeline, as of an object that passed its filters before.
func handOver(ctx context.Context, p *pipeline.Pipeline, d *delta.Delta) error {
	ticket, err := p.Reserve(ctx, d, true)
	if err == nil {
		p.Take(ticket)
	}
	return err
}

// handOverGap hands a gap to a pipeline.
func handOverGap(ctx context.Context, p *pipeline.Pipeline, g *delta.Gap) error {
	ticket, err := p.ReserveGap(ctx, g)
	if err == nil {
		p.Take(ticket)
	}
	return err
}
