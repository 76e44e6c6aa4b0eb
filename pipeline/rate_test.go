package pipeline

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// TestRate: a pipeline sends no more than its rate allows, and loses nothing.
func TestRate(t *testing.T) {
	sink := &script{}
	largest, sent := 0, 0
	began := time.Now()
	sink.set(func(_ int, batch []sinks.Record) error {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		largest, sent = max(largest, len(batch)), sent+len(batch)
		if most := 4 + 40*time.Since(began).Seconds(); float64(sent) > most {
			t.Errorf("%d records are sent after %v", sent, time.Since(began))
		}
		return nil
	})
	p := start(t, sink, &letters{}, func(o *Options) { o.Rate = Rate{PerSecond: 40, Burst: 4} })
	for n := range 24 {
		mustTake(t, p, change(t, fmt.Sprint("pod-", n), n+1))
	}
	drain(t, p)
	if elapsed := time.Since(began); elapsed < time.Second/2 || largest > 4 || sent != 24 {
		t.Errorf("%d records in %v, at most %d at once", sent, elapsed, largest)
	}
}

// TestRateDefaults: without a burst it is the rate, and at least one record.
func TestRateDefaults(t *testing.T) {
	for r, want := range map[Rate]int{{PerSecond: 0.1}: 1, {PerSecond: 2.5}: 2, {PerSecond: 2.5, Burst: 7}: 7} {
		if got := r.limiter().Burst(); got != want {
			t.Errorf("%+v: got %d, want %d", r, got, want)
		}
	}
	if (Rate{}).limiter() != nil {
		t.Error("no rate is a bound")
	}
}
