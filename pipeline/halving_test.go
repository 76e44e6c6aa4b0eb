package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// halving sends batches as sinks/webhook does: one with a record that is refused for good is sent again in halves, within one call.
type halving struct {
	latency time.Duration

	mu   sync.Mutex
	took map[string]time.Time // by name of the object
}

func (s *halving) Deliver(ctx context.Context, batch []sinks.Record) error {
	errs, indices := make([]error, len(batch)), make([]int, len(batch))
	for i := range indices {
		indices[i] = i
	}
	split := sinks.Split{
		Batch: batch, Errs: errs, Fit: func(rest []*sinks.Record) int { return len(rest) },
		Request: func(ctx context.Context, records []*sinks.Record) (bool, error) {
			time.Sleep(s.latency)
			if err := ctx.Err(); err != nil {
				return false, sinks.Classify(err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, r := range records {
				if strings.Contains(r.Key, "/bad-") {
					return true, sinks.Permanent(sinks.ReasonRejected, errors.New("422"))
				}
			}
			for _, r := range records {
				s.took[r.Key[strings.LastIndexByte(r.Key, '/')+1:]] = time.Now()
			}
			return false, nil
		},
	}
	split.Send(ctx, indices)
	return sinks.Result(errs)
}

func (*halving) Close(context.Context) error { return nil }

// Batches that are sent in halves, because of records that are refused for good, hold up no other namespace.
func TestHalvesHoldUpOnlyTheirNamespace(t *testing.T) {
	for _, test := range []struct {
		latency   time.Duration
		perSecond float64 // refused records
	}{
		{20 * time.Millisecond, 200},
		{100 * time.Millisecond, 50},
	} {
		t.Run(fmt.Sprintf("%v a request, %v refused/s", test.latency, test.perSecond), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &halving{latency: test.latency, took: map[string]time.Time{}}
				p, stop := launch(sink, &letters{}, tenantLimits(100, 8))
				defer stop()
				sent := map[string]time.Time{}
				begun := time.Now()
				for refused, good := 0, 0; time.Since(begun) < time.Minute; time.Sleep(10 * time.Millisecond) {
					for passed := time.Since(begun).Seconds(); float64(refused) < passed*test.perSecond; refused++ {
						mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", refused), refused+1))
					}
					for passed := time.Since(begun).Seconds(); float64(good) < passed*50; good++ {
						name := fmt.Sprint("good-", good)
						sent[name] = time.Now()
						mustTake(t, p, change(t, name, 100_000+good))
					}
				}
				time.Sleep(10 * time.Second)
				sink.mu.Lock()
				defer sink.mu.Unlock()
				waits := (&tenants{took: sink.took}).waits(t, sent)
				if p99 := waits[len(waits)*99/100]; p99 > 2*time.Second {
					t.Errorf("the p99 of good changes is %v", p99)
				}
			})
		})
	}
}
