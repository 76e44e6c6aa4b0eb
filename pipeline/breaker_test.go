package pipeline

import (
	"testing"
	"time"
)

// However long a sink takes to fail, its probes are no further apart than the promise of a quick recovery allows.
func TestProbesOfASlowFailure(t *testing.T) {
	for _, takes := range []time.Duration{0, 700 * time.Millisecond, 3 * time.Second, 10 * time.Second} {
		g := newBreaker(Retry{Initial: 100 * time.Millisecond})
		start := time.Now()
		g.fail(start, 0, false)
		var underWay []time.Time // when the probes fail
		last := start
		for now := start; now.Before(start.Add(time.Minute)); now = now.Add(time.Millisecond) {
			for len(underWay) > 0 && !now.Before(underWay[0]) {
				underWay = underWay[1:]
				g.answered()
				g.fail(now, 0, true)
			}
			if now.Before(g.next) {
				continue
			}
			if apart := now.Sub(last); apart > maxProbeInterval*12/10+time.Millisecond {
				t.Fatalf("a sink that fails after %v: %v between probes", takes, apart)
			}
			g.probed(now, false)
			last, underWay = now, append(underWay, now.Add(takes))
			if len(underWay) > 8 { // as many calls as a webhook may have under way
				t.Fatalf("a sink that fails after %v: %d probes at once", takes, len(underWay))
			}
		}
		if g.interval != maxProbeInterval {
			t.Errorf("a sink that fails after %v: the interval is %v", takes, g.interval)
		}
	}
}

// The delay that a sink requests counts from its answer, and holds back all but a few probes.
func TestRetryAfterCountsFromTheAnswer(t *testing.T) {
	g := newBreaker(Retry{Initial: 100 * time.Millisecond})
	start := time.Now()
	g.fail(start, 0, false)
	answer := start
	for n, want := range []time.Duration{maxProbeInterval, maxProbeInterval, maxProbeInterval, 5 * time.Second, 5 * time.Second} {
		g.probed(answer.Add(time.Second), false)
		g.answered()
		answer = answer.Add(4 * time.Second)
		g.fail(answer, 5*time.Second, true)
		if got, early := g.wait(answer); got != want || !early {
			t.Errorf("after probe %d the next one goes %v after the answer, early: %t, want %v", n, got, early, want)
		}
		answer = answer.Add(want)
	}
}
