package pipeline

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// cutsFirst is a permit that cuts the first call short.
type cutsFirst struct{ calls atomic.Int64 }

func (c *cutsFirst) Enter(ctx context.Context) (context.Context, func() bool, error) {
	first := c.calls.Add(1) == 1
	return ctx, func() bool { return first }, nil
}

func (*cutsFirst) MayGoOn() bool { return true }

// What a leader's permit cut short is sent once more as it was: the receiver may have it, and recognizes it only then.
func TestCutCallIsRepeatedAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &script{}
		var mu sync.Mutex // guards what follows
		var batches []int
		var cut time.Time
		sink.set(func(call int, batch []sinks.Record) error {
			mu.Lock()
			defer mu.Unlock()
			batches = append(batches, len(batch))
			if call == 1 {
				cut = time.Now()
				return errDown
			}
			return nil
		})
		p, stop := launch(sink, &letters{}, func(o *Options) {
			o.Permit, o.Retry.Initial, o.Limits.Linger = &cutsFirst{}, time.Second, 5*time.Millisecond
		})
		defer stop()
		mustTake(t, p, change(t, "a", 1))
		mustTake(t, p, change(t, "b", 2))
		time.Sleep(100 * time.Millisecond)
		mu.Lock()
		due := cut.Add(time.Second)
		mu.Unlock()
		time.Sleep(time.Until(due.Add(2 * time.Millisecond)))
		mustTake(t, p, change(t, "c", 3))
		drain(t, p)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(batches, []int{2, 2, 1}) {
			t.Errorf("got batches of %v", batches)
		}
	})
}
