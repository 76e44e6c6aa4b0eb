package e2e_test

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// beat is how often a pulse beats when the machine lets it.
const beat = 5 * time.Millisecond

// pulse shows when the machine did not run this process, so that a bound on time can leave that out: a moment without a
// beat.
type pulse struct {
	Stop func() // may be called more than once

	mu    sync.Mutex // guards what follows
	beats []time.Time
}

// startPulse beats until Stop or the end of the test, and calls each, if there is one, with every beat.
func startPulse(tb testing.TB, each func()) *pulse {
	tb.Helper()
	p := &pulse{beats: []time.Time{time.Now()}}
	stop, stopped := make(chan struct{}), make(chan struct{})
	p.Stop = sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
	tb.Cleanup(p.Stop)
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(beat)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-stop:
				return
			}
			p.mu.Lock()
			p.beats = append(p.beats, time.Now())
			p.mu.Unlock()
			if each != nil {
				each()
			}
		}
	}()
	return p
}

// Stalled is how much of a time the beats were late. A beat that is late at the end of it counts, although it is yet to come.
func (p *pulse) Stalled(from, to time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var sum time.Duration
	beats := append(slices.Clip(p.beats), to)
	for n := 1; n < len(beats); n++ {
		begin, end := beats[n-1].Add(2*beat), beats[n]
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		sum += max(0, end.Sub(begin))
	}
	return sum
}
