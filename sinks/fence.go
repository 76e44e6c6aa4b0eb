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

// Fence waits until the next request of a Deliver call may begin. It returns the error of ctx if that ends before. A sink that sends
// several calls it before each: in a process that was frozen the requests go on a moment before their context ends.
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
