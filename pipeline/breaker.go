package pipeline

import (
	"math/rand/v2"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// maxProbeInterval bounds the time between a sink's recovery and the first record it takes.
const maxProbeInterval = 1500 * time.Millisecond

// gate is closed while the sink as a whole is thought to fail. The pipeline's mutex guards it.
type gate struct {
	initial time.Duration

	closed   bool
	since    time.Time
	interval time.Duration
	sent     time.Time // when the last probe went
	next     time.Time // when the next may go
	underway int       // probes that have no answer yet
	// fresh says whose turn it is to probe: a ready object's, or a failed unit's.
	fresh bool
}

func newGate(retry Retry) gate { return gate{initial: min(retry.Initial, maxProbeInterval)} }

// fail closes the gate, or takes note of a probe that failed. It reports whether the gate was open.
func (g *gate) fail(now time.Time, retryAfter time.Duration, probe bool) (closedNow bool) {
	closedNow = !g.closed
	switch {
	case closedNow:
		g.closed, g.since, g.interval, g.next, g.fresh = true, now, g.initial, now, false // the first probe is fresh
		g.postpone(now.Add(g.pause()))
	case probe:
		g.interval = min(2*g.interval, maxProbeInterval)
		// From when it was sent: a sink that takes long to fail is not asked more seldom for that.
		g.postpone(g.sent.Add(g.pause()))
	default: // it was under way when the gate closed, and teaches nothing new
	}
	g.postpone(now.Add(min(retryAfter, sinks.MaxRetryAfter)))
	return closedNow
}

// probed takes note of a probe that is sent. The next need not wait for its answer: a sink that hangs would keep
// that from coming for as long as its time-out. But it is not asked in quick succession either: that would take all the
// calls that may be under way at once.
func (g *gate) probed(now time.Time) {
	if g.underway > 0 {
		g.interval = maxProbeInterval
	}
	g.underway++
	g.sent, g.next = now, now.Add(g.pause())
}

// answered takes note that a probe has come back, whatever it says.
func (g *gate) answered() { g.underway-- }

func (g *gate) postpone(next time.Time) {
	if next.After(g.next) {
		g.next = next
	}
}

// pause is the interval with some jitter, so that several pipelines of one sink do not probe in step.
func (g *gate) pause() time.Duration {
	return time.Duration(float64(g.interval) * (1 + 0.2*rand.Float64()))
}

// succeed opens the gate and reports whether it was closed.
func (g *gate) succeed() (openedNow bool) {
	openedNow = g.closed
	g.closed = false
	return openedNow
}
