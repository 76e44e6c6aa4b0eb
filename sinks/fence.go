package sinks

import (
	"context"
	"time"
)

// fencePoll is how often Fence checks.
const fencePoll = 10 * time.Millisecond

type fenceKey struct{}

// WithFence returns a context for a Deliver call that begins no request while mayGoOn returns false.
func WithFence(ctx context.Context, mayGoOn func() bool) context.Context {
	return context.WithValue(ctx, fenceKey{}, mayGoOn)
}

// Fence waits until the next request of a Deliver call may begin. It returns the error of ctx if that ends before. In
// a process that was frozen, a context ends a moment too late. So a sink that sends several requests calls Fence before each.
func Fence(ctx context.Context) error {
	mayGoOn, fenced := ctx.Value(fenceKey{}).(func() bool)
	for fenced && !mayGoOn() {
		select {
		case <-time.After(fencePoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
