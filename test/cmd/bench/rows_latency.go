package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// rates of writes per second; 0 is as fast as the server takes them.
func rates() []int { return []int{50, 200, 500, 0} }

// delays are how far the sink was behind the raw watch.
type delays struct{ p50, p99 time.Duration }

func latency(ctx context.Context, l *lab) ([]check, error) {
	var checks []check
	for _, rate := range rates() {
		name := fmt.Sprintf("at %d/s", rate)
		seconds := 10
		if rate == 0 {
			name = "as fast as it goes"
		}
		operations := l.scaled(max(rate, 1200) * seconds)
		if rate > 0 {
			operations = l.scaled(rate * seconds)
		}
		l.say("    %s", name)
		floor := func(w writing) (*subject, error) { return l.startFloor(w.path(), true) }
		ferry := func(w writing) (*subject, error) { return l.startExporter(w.exporter()) }
		var of [2][]delays
		for n := range l.pairs {
			for turn := range 2 {
				var d delays
				var got float64
				var err error
				which := (n + turn) % 2
				if which == 0 {
					d, got, err = l.delays(ctx, frames, operations, rate, floor, floorWatches)
				} else {
					d, got, err = l.delays(ctx, cloudEvents, operations, rate, ferry, exporterWatches)
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				of[which] = append(of[which], d)
				l.say("    %-10s p50 %5.1f ms, p99 %5.1f ms at %.0f/s", [2]string{"floor", "kubeferry"}[which], millis(d.p50), millis(d.p99), got)
			}
		}
		checks = append(checks, latencyChecks(name, of)...)
	}
	return checks, nil
}

func latencyChecks(name string, of [2][]delays) []check {
	var p50, p99 [2]float64
	for which := range of {
		p50[which] = medianOf(of[which], func(d delays) time.Duration { return d.p50 })
		p99[which] = medianOf(of[which], func(d delays) time.Duration { return d.p99 })
	}
	differences := make([]float64, len(of[0]))
	for i := range differences {
		differences[i] = millis(of[1][i].p99 - of[0][i].p99)
	}
	worst := check{What: name + ", p99, ms", Base: number(p99[0]), Value: number(p99[1]), Ratio: fmt.Sprintf("%+.1f", median(differences))}
	worst.Target, worst.Outcome = atMost(15, "≤ floor + 15").judge(median(differences))
	return []check{
		{What: name + ", p50, ms", Base: number(p50[0]), Value: number(p50[1]), Ratio: fmt.Sprintf("%+.1f", p50[1]-p50[0])},
		worst,
	}
}

func medianOf(all []delays, value func(delays) time.Duration) float64 {
	values := make([]float64, len(all))
	for i, d := range all {
		values[i] = millis(value(d))
	}
	return median(values)
}

// delays runs a program and a raw watch beside a load, and returns with them the rate that the load reached.
func (l *lab) delays(ctx context.Context, f form, operations, rate int, start func(writing) (*subject, error), ready func(context.Context, *subject) error) (delays, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	w, err := l.newWriting(ctx, operations, rate)
	if err != nil {
		return delays{}, 0, err
	}
	l.hook.expect(f, true)
	s, err := start(w)
	if err != nil {
		return delays{}, 0, err
	}
	defer s.stop()
	if err := ready(ctx, s); err != nil {
		return delays{}, 0, err
	}
	raw, err := l.watchRaw(ctx, w.path())
	if err != nil {
		return delays{}, 0, err
	}
	defer raw.stop()
	begin := time.Now()
	changes, err := l.write(ctx, w)
	if err != nil {
		return delays{}, 0, err
	}
	reached := float64(changes) / time.Since(begin).Seconds()
	if _, err := l.hook.wait(ctx, int64(changes), s.process.Done()); err != nil {
		return delays{}, 0, s.explain(err)
	}
	if err := raw.wait(ctx, changes); err != nil {
		return delays{}, 0, err
	}
	d, err := between(raw.stop(), l.hook.arrivals(), changes)
	return d, reached, err
}

// between compares when changes were visible with when they arrived.
func between(seen, arrived map[uint64]time.Time, changes int) (delays, error) {
	var behind []time.Duration
	for version, at := range arrived {
		if visible, ok := seen[version]; ok {
			behind = append(behind, at.Sub(visible))
		}
	}
	if len(behind) < changes || changes == 0 {
		return delays{}, fmt.Errorf("only %d of %d changes were seen by both the raw watch and the sink", len(behind), changes)
	}
	slices.Sort(behind)
	return delays{p50: behind[len(behind)/2], p99: behind[len(behind)*99/100]}, nil
}
