package pipeline

import (
	"context"

	"github.com/kubeferry/kubeferry/sinks"
)

// Permit decides when a sink may be called, where several processes could deliver the same.
type Permit interface {
	// Enter waits until a call may begin, and fails only if ctx ends before. The call's context ends when it must. leave must be
	// called once; it reports whether the call was cut short, which proves nothing about the sink.
	Enter(ctx context.Context) (call context.Context, leave func() (cut bool), err error)
	// MayGoOn reports whether a call that has begun may send another request. Its context ends a moment later than that may become false.
	MayGoOn() bool
}

// enter is Enter of a permit that may be nil.
func enter(ctx context.Context, p Permit) (context.Context, func() bool, error) {
	if p == nil {
		return ctx, func() bool { return false }, nil
	}
	ctx, leave, err := p.Enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	return sinks.WithFence(ctx, p.MayGoOn), leave, nil
}
