package sinks_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

// TestFence shuts the fence with the first request of a call: no other one begins, and their records have the error of the context.
func TestFence(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	shut, requests := false, 0
	batch := []sinks.Record{{Key: "a"}, {Key: "b"}, {Key: "a"}}
	split := sinks.Split{
		Batch: batch, Errs: make([]error, len(batch)),
		Fit: func([]*sinks.Record) int { return 1 },
		Request: func(context.Context, []*sinks.Record) (bool, error) {
			requests, shut = requests+1, true
			return false, nil
		},
	}
	split.Send(sinks.WithFence(ctx, func() bool {
		if shut {
			cancel() // later than the fence
		}
		return !shut
	}), []int{0, 1, 2})
	if requests != 1 || split.Errs[0] != nil || !errors.Is(split.Errs[1], context.Canceled) || !errors.Is(split.Errs[2], context.Canceled) {
		t.Errorf("%d requests, %v", requests, split.Errs)
	}
}
