package kafkatest

import (
	"context"
	"fmt"
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
