package kafkatest

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"
)

// poll calls condition until it succeeds or ctx ends.
func poll(ctx context.Context, condition func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// testLog writes lines to a test's log.
type testLog struct{ tb testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.tb.Helper()
	l.tb.Logf("%s", bytes.TrimRight(b, "\n"))
	return len(b), nil
}
