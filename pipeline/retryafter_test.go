package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

func throttled(after time.Duration) error {
	return &sinks.Error{Err: errors.New("429"), Reason: sinks.ReasonThrottled, RetryAfter: after}
}

// A receiver that limits each tenant's rate holds up only the tenant that exceeds it, whatever delay it requests of him.
func TestRetryAfterOfOneTenant(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		after, every time.Duration // a refused change
		records      int
	}{
		{time.Second, 100 * time.Millisecond, 100},
		{time.Minute, time.Second, 1},
		{time.Minute, time.Second, 100},
		{time.Minute, time.Hour, 100},
		{10 * time.Minute, 10 * time.Second, 1},
	} {
		t.Run(fmt.Sprintf("%v, every %v, batches of %d", test.after, test.every, test.records), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := func(context.Context) error { return throttled(test.after) }
				sink := &tenants{bad: bad, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
				p, stop := launch(sink, &letters{}, tenantLimits(test.records, 8))
				defer stop()
				sent := map[string]time.Time{}
				begun := time.Now()
				for bad, good := 0, 0; time.Since(begun) < time.Minute; time.Sleep(10 * time.Millisecond) {
					for ; float64(bad) <= time.Since(begun).Seconds()/test.every.Seconds(); bad++ {
						mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", bad), bad+1))
					}
					for ; float64(good) < time.Since(begun).Seconds()*50; good++ {
						name := fmt.Sprint("good-", good)
						sent[name] = time.Now()
						mustTake(t, p, change(t, name, 10_000+good))
					}
				}
				time.Sleep(10 * time.Second)
				waits := sink.waits(t, sent)
				if p99 := waits[len(waits)*99/100]; p99 > 5*time.Second {
					t.Errorf("the p99 of good changes is %v", p99)
				}
			})
		})
	}
}

// limited is a sink that limits the rate of all calls.
type limited struct {
	perSecond float64
	after     time.Duration

	mu          sync.Mutex
	tokens      float64
	last        time.Time // call
	calls, took int
}

func (s *limited) Deliver(_ context.Context, batch []sinks.Record) error {
	time.Sleep(20 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	now := time.Now()
	s.tokens = min(s.perSecond*s.after.Seconds(), s.tokens+now.Sub(s.last).Seconds()*s.perSecond)
	s.last = now
	if s.tokens < 1 {
		return throttled(s.after)
	}
	s.tokens--
	s.took += len(batch)
	return nil
}

func (*limited) Close(context.Context) error { return nil }

// A sink that limits the rate of all calls gets what it takes in large batches: they are not taken apart.
func TestRetryAfterOfALimitedSink(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &limited{perSecond: 5, after: after}
				p, stop := launch(sink, &letters{}, tenantLimits(100, 8))
				defer stop()
				const changes = 200 * 120
				for n := range changes {
					mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", n%20), fmt.Sprint("o-", n%5000), n+1))
					time.Sleep(5 * time.Millisecond)
				}
				time.Sleep(2 * time.Minute)
				sink.mu.Lock()
				defer sink.mu.Unlock()
				if sink.took < changes*9/10 { // the last ones wait for their backoff
					t.Errorf("%d of %d changes arrived, in %d calls", sink.took, changes, sink.calls)
				}
			})
		})
	}
}

// A sink that requests a delay of all gets one call of each namespace in each delay, and a few more at the beginning.
func TestRetryAfterOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &limited{after: time.Minute}
		p, stop := launch(sink, &letters{}, tenantLimits(1, 8))
		defer stop()
		for n := range 50 * 600 {
			mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", n%20), fmt.Sprint("o-", n%1000), n+1))
			time.Sleep(20 * time.Millisecond)
		}
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if most := 20 + 20*10; sink.calls > most {
			t.Errorf("%d calls in 10 minutes, want at most %d", sink.calls, most)
		}
	})
}

// throttling runs a pipeline before a sink that refuses bad records, and requests a delay.
func throttling(after, latency time.Duration, records, calls int) (*tenants, *Pipeline, func()) {
	sink := &tenants{bad: func(context.Context) error { return throttled(after) }, took: map[string]time.Time{}, latency: latency}
	p, stop := launch(sink, &letters{}, tenantLimits(records, calls))
	return sink, p, stop
}

// In a quiet cluster one tenant's records have all of the early probes. A change of another namespace has one of its own, and so has a gap.
func TestRetryAfterOfOneTenantInAQuietCluster(t *testing.T) {
	for _, other := range []string{"change", "gap"} {
		t.Run(other, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, p, stop := throttling(10*time.Minute, 5*time.Millisecond, 1, 8)
				defer stop()
				mustTake(t, p, change(t, "good-0", 1))
				time.Sleep(10 * time.Second)
				for n := range 6 {
					mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", n), n+1))
					time.Sleep(time.Second)
				}
				time.Sleep(5 * time.Second)
				waiting := func() uint64 { c := p.Stats(); return c.Waiting + c.GapsWaiting }
				before := waiting()
				if other == "gap" {
					if err := p.Gap(t.Context(), &delta.Gap{Watch: "w", Resource: pods, From: "1", To: "90", Observed: time.Now()}); err != nil {
						t.Fatal(err)
					}
				} else {
					mustTake(t, p, change(t, "good-1", 2))
				}
				if time.Sleep(3 * time.Second); waiting() > before {
					t.Error("it waits")
				}
			})
		})
	}
}

// Changes that were in one call with the tenant's do not wait for the delay either.
func TestRetryAfterOfABatchOfSeveralNamespaces(t *testing.T) {
	for _, test := range []struct {
		after      time.Duration
		namespaces int
	}{{time.Minute, 1}, {10 * time.Minute, 1}, {time.Minute, 50}, {10 * time.Minute, 50}} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink, p, stop := throttling(test.after, 20*time.Millisecond, 100, 1)
				defer stop()
				for n := range test.namespaces { // the tenant's had no success
					mustTake(t, p, changeIn(t, fmt.Sprint("namespace-", n), "before", 1))
				}
				time.Sleep(time.Second)
				mustTake(t, p, change(t, "good", 1)) // what comes while it is under way is sent together
				sent := map[string]time.Time{}
				for n := range test.namespaces {
					name := fmt.Sprint("good-", n)
					sent[name] = time.Now()
					mustTake(t, p, changeIn(t, fmt.Sprint("namespace-", n), name, n+2))
				}
				mustTake(t, p, changeIn(t, "tenant", "bad-1", 1))
				time.Sleep(time.Hour)
				if waits := sink.waits(t, sent); waits[len(waits)-1] > 7*time.Second {
					t.Errorf("one waited for %v", waits[len(waits)-1])
				}
			})
		})
	}
}

// Nor does it wait for one probe in each delay of each of many namespaces, whose records are refused one by one.
func TestRetryAfterOfManyNamespacesInAQuietCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, p, stop := throttling(10*time.Minute, 5*time.Millisecond, 1, 8)
		defer stop()
		mustTake(t, p, change(t, "good-0", 1))
		for _, kind := range []string{"good", "bad"} {
			for n := range 50 {
				mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", n), fmt.Sprintf("%s-%d", kind, n), n+1))
			}
			time.Sleep(10 * time.Second)
		}
		sent := map[string]time.Time{"last": time.Now()}
		mustTake(t, p, change(t, "last", 2))
		time.Sleep(6 * time.Hour)
		if waits := sink.waits(t, sent); waits[0] > 50*time.Minute {
			t.Errorf("it waited for %v", waits[0])
		}
	})
}
