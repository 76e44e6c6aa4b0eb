package pipeline

import "context"

// Permit decides when a sink may be called, where several processes could deliver the same.
type Permit interface {
	// Enter waits until a call may begin, and fails only if ctx ends before. The call's context ends when it must. leave must be
	// called once; it reports whether the call was cut short, which proves nothing about the sink.
	Enter(ctx context.Context) (call context.Context, leave func() (cut bool), err error)
}

// enter is Enter of a permit that may be nil.
func enter(ctx context.Context, p Permit) (context.Context, func() bool, error) {
	if p == nil {
		return ctx, func() bool { return false }, nil
	}
	return p.Enter(ctx)
}
