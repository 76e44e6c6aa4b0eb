package pipeline

import (
	"math/rand/v2"
	"time"
)

// maxProbeInterval bounds the time between a sink's recovery and the first record it takes.
const maxProbeInterval = 1500 * time.Millisecond

// earlyProbes is how many records may be sent within a delay that the sink requested: if it takes one, it requested the delay for
// some records only, as a receiver does that limits each tenant's rate.
const earlyProbes = 3

// unprobedProbes is how many more may be sent within it of namespaces that had none: the first may all have been of the tenant whose rate is
// limited. If a probe behind the delay gets another one, that is at most one in a minute of it.
const unprobedProbes = 10

// quickProbes is how many probes of namespaces that had none may follow each other after the first interval, in quickPeriod: many
// namespaces may be refused, and the next one not.
const (
	quickProbes = 32
	quickPeriod = 5 * time.Second
)

// breaker is a circuit breaker: it is tripped while the sink as a whole counts as failing. The metric kubeferry_gate_open
// and the status count the other way round: an open gate means a healthy sink. The pipeline's mutex guards it.
type breaker struct {
	initial time.Duration

	tripped  bool
	since    time.Time
	interval time.Duration
	sent     time.Time // when the last probe went
	next     time.Time // when the next may go
	underway int       // probes that have no answer yet
	quick    int       // how many more of quickProbes may go, in the period since
	period   time.Time // this
	isQuick  bool      // the last one was of these
	// until is the end of the longest delay that the sink requested. Before it, only early more probes may go; below zero they are of unprobedProbes.
	until time.Time
	early int
	// These alternate probes, and are set if it was last the turn of the first kind, even if there was none: lately, of a namespace with a
	// success lately or another; among the others fresh, a ready object or a failed batch.
	lately, fresh bool
	// notice is set if the last notice was a ready one, if others had failed.
	notice bool
}

func newBreaker(retry Retry) breaker { return breaker{initial: min(retry.Initial, maxProbeInterval)} }

// fail trips the breaker, or counts a probe that failed. It reports whether the breaker was not tripped before.
func (b *breaker) fail(now time.Time, retryAfter time.Duration, probe bool) (trippedNow bool) {
	trippedNow = !b.tripped
	switch {
	case trippedNow:
		b.tripped, b.since, b.interval, b.next = true, now, b.initial, now
		b.lately, b.fresh, b.isQuick = false, false, false
		b.until, b.early = now, earlyProbes
		if now.Sub(b.period) > quickPeriod {
			b.quick, b.period = quickProbes, now
		}
		b.postpone(now.Add(b.pause()))
	case probe:
		if !b.isQuick {
			b.interval = min(2*b.interval, maxProbeInterval)
		}
		// From when it was sent: a sink that takes long to fail gets no fewer probes.
		b.postpone(b.sent.Add(b.pause()))
	default: // it was under way when the breaker tripped, which is known by now
	}
	unprobed := !trippedNow && b.early < 0 && b.sent.Before(b.until) // one of unprobedProbes makes the others wait no longer
	if end := now.Add(retryAfter); end.After(b.until) && !unprobed {
		if b.until = end; !trippedNow {
			b.early = max(b.early, min(unprobedProbes, max(1, int(retryAfter/time.Minute)))-unprobedProbes)
		}
	}
	b.postpone(now.Add(min(retryAfter, maxProbeInterval)))
	return trippedNow
}

// probed counts a probe that is sent. The next does not wait for its result, which a sink that hangs delays until the time-out. But
// while one is under way the interval is the longest, or probes would use up all concurrent calls. unprobed is set if the probe is of a
// namespace that had none.
func (b *breaker) probed(now time.Time, unprobed bool) {
	if b.underway > 0 {
		b.interval = maxProbeInterval
	}
	if b.isQuick = unprobed && b.underway == 0 && b.quick > 0; b.isQuick {
		b.quick--
	}
	b.underway++
	if now.Before(b.until) {
		b.early--
	}
	b.sent, b.next = now, now.Add(b.pause())
}

// wait returns how long no probe may go; early is set if the next one goes within a delay that the sink requested.
func (b *breaker) wait(now time.Time) (wait time.Duration, early bool) {
	early = now.Before(b.until)
	if early && b.early <= 0 {
		return b.until.Sub(now), true
	}
	return b.next.Sub(now), early
}

// onlyUnprobed reports whether only namespaces that had no probe may have one.
func (b *breaker) onlyUnprobed(now time.Time) bool {
	return b.tripped && now.Before(b.until) && b.early <= 0
}

// answered counts a probe that has returned, with whatever result.
func (b *breaker) answered() { b.underway-- }

func (b *breaker) postpone(next time.Time) {
	if next.After(b.next) {
		b.next = next
	}
}

// pause is the interval with some jitter, so that several pipelines of one sink do not probe in step.
func (b *breaker) pause() time.Duration {
	interval := b.interval
	if b.isQuick {
		interval = b.initial
	}
	return time.Duration(float64(interval) * (1 + 0.2*rand.Float64()))
}

// succeed resets the breaker and reports whether it was tripped.
func (b *breaker) succeed() (resetNow bool) {
	resetNow, b.tripped = b.tripped, false
	return resetNow
}
