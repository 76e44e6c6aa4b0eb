package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// sample is one run of one program.
type sample struct {
	CPU       time.Duration
	RSS, Peak int64
	Records   int64
	// Bytes of a record on its way to the sink.
	Bytes int64
	// Wall is the time from the start of the program to the last record, Stream from the first record to the last.
	Wall, Stream time.Duration
}

// perRecord is the CPU time that one record took.
func (s sample) perRecord() time.Duration { return s.CPU / time.Duration(max(1, s.Records)) }

// rate is records per second, once they flow; from the start of the program if all came at once.
func (s sample) rate() float64 {
	return float64(s.Records) / cmp.Or(s.Stream, s.Wall).Seconds()
}

// settle is how long a run goes on after its last record, so that what it brought about (a commit) counts.
const settle = 300 * time.Millisecond

// runTimeout bounds one run.
const runTimeout = 5 * time.Minute

// backlog runs a program until n records have arrived; its whole life counts.
func (l *lab) backlog(ctx context.Context, f form, n int, start func() (*subject, error)) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	l.hook.expect(f, false)
	s, err := start()
	if err != nil {
		return sample{}, err
	}
	defer s.stop()
	got, err := l.hook.wait(ctx, int64(n), s.process.Done())
	if err != nil {
		return sample{}, s.explain(err)
	}
	return s.sample(ctx, got, usage{})
}

// sample looks at a program after its last record; before is what it had used when the run began.
func (s *subject) sample(ctx context.Context, got tally, before usage) (sample, error) {
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return sample{}, ctx.Err()
	}
	after, err := s.usage()
	if err != nil {
		return sample{}, s.explain(err)
	}
	return sample{
		CPU: after.CPU - before.CPU, RSS: after.RSS, Peak: after.Peak, Records: got.records,
		Bytes: got.bytes / max(1, got.records), Wall: got.last.Sub(s.begun), Stream: got.last.Sub(got.first),
	}, nil
}

// side is one of the two programs that a row compares.
type side struct {
	name string
	run  func(ctx context.Context) (sample, error)
}

// pairs runs both sides in turn, the first one first in every other pair, so that what drifts favours neither.
func (l *lab) paired(ctx context.Context, a, b side) (of pair, err error) {
	for n := range l.pairs {
		order := []side{a, b}
		if n%2 == 1 {
			order = []side{b, a}
		}
		for _, side := range order {
			s, err := side.run(ctx)
			if err != nil {
				return of, fmt.Errorf("%s: %w", side.name, err)
			}
			l.say("    %-10s %6.2f s CPU, %6.1f µs each, %5.1f MiB peak, %7.0f/s, %d records of %d bytes", side.name,
				s.CPU.Seconds(), micros(s.perRecord()), mebi(s.Peak), s.rate(), s.Records, s.Bytes)
			if side.name == a.name {
				of.a = append(of.a, s)
			} else {
				of.b = append(of.b, s)
			}
		}
	}
	return of, nil
}

// pair are the runs of two sides, index by index.
type pair struct{ a, b []sample }

// ratio is the median over the pairs of what b has against what a has.
func (p pair) ratio(value func(sample) float64) float64 {
	ratios := make([]float64, len(p.a))
	for i := range p.a {
		ratios[i] = value(p.b[i]) / value(p.a[i])
	}
	return median(ratios)
}

func each(samples []sample, value func(sample) float64) []float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = value(s)
	}
	return values
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// cpuEach, peak and speed are what the rows compare, in the units that they print.
func cpuEach(s sample) float64 { return micros(s.CPU) / float64(max(1, s.Records)) }
func peak(s sample) float64    { return mebi(s.Peak) }
func speed(s sample) float64   { return s.rate() }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func mebi(bytes int64) float64       { return float64(bytes) / (1 << 20) }
