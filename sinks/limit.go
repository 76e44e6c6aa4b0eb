package sinks

import (
	"context"
)

// Limit bounds the Deliver calls of a sink that several pipelines share. Calls beyond the bound wait.
func Limit(sink Sink, calls int) Sink {
	return &limited{sink: sink, slots: make(chan struct{}, calls)}
}

type limited struct {
	sink  Sink
	slots chan struct{}
}

func (l *limited) Deliver(ctx context.Context, batch []Record) error {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return Transient(ReasonTimeout, context.Cause(ctx))
	}
	defer func() { <-l.slots }()
	return l.sink.Deliver(ctx, batch)
}

func (l *limited) Close(ctx context.Context) error { return l.sink.Close(ctx) }
