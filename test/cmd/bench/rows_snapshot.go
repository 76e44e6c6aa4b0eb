package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// snapshotRate is how many writes per second go on beside a snapshot.
const snapshotRate = 200

// onDemand lets kubeferry send a snapshot of all known objects beside live changes, and compares with the same changes without one.
func onDemand(ctx context.Context, l *lab) ([]check, error) {
	n, err := l.loadKnown(ctx)
	if err != nil {
		return nil, err
	}
	var alone99, beside99, later, alonePeak, besidePeak, more, took []float64
	for range l.pairs {
		of, wall, err := l.besideSnapshot(ctx, n)
		if err != nil {
			return nil, err
		}
		l.say("    %.1f s; p99 %.1f ms without, %.1f ms beside it; peak %.1f MiB without, %.1f MiB beside it", wall.Seconds(),
			millis(of[0].p99), millis(of[1].p99), mebi(of[0].peak), mebi(of[1].peak))
		alone99, beside99 = append(alone99, millis(of[0].p99)), append(beside99, millis(of[1].p99))
		alonePeak, besidePeak = append(alonePeak, mebi(of[0].peak)), append(besidePeak, mebi(of[1].peak))
		later = append(later, millis(of[1].p99-of[0].p99))
		more = append(more, mebi(of[1].peak-of[0].peak))
		took = append(took, wall.Seconds())
	}
	versus := func(what string, without, beside, differences []float64, target *goal) check {
		c := check{What: what, Base: "without " + number(median(without)), Value: "beside " + number(median(beside))}
		c.Ratio = fmt.Sprintf("%+.1f", median(differences))
		c.Target, c.Outcome = target.judge(median(differences))
		return c
	}
	return []check{
		versus(fmt.Sprintf("changes at %d/s, p99, ms", snapshotRate), alone99, beside99, later, atMost(20, "≤ without + 20")),
		versus("peak RSS, MiB", alonePeak, besidePeak, more, atMost(32, "< without + 32")),
		alone("a snapshot takes, s", median(took), nil),
	}, nil
}

// strain is what a load met: how late its changes arrived, and the memory of kubeferry meanwhile.
type strain struct {
	delays
	peak int64
}

// besideSnapshot starts kubeferry on n known objects, and runs a load without a snapshot, and one with.
func (l *lab) besideSnapshot(ctx context.Context, n int) (of [2]strain, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*runTimeout)
	defer cancel()
	var loads [2]writing
	e := known(10)
	for i := range loads {
		if loads[i], err = l.newWriting(ctx, l.scaled(15*snapshotRate), snapshotRate); err != nil {
			return of, 0, err
		}
		e.events = append(e.events, loads[i].namespace)
	}
	if e.stateDir, err = l.knownStateDir("snapshot"); err != nil {
		return of, 0, err
	}
	file := filepath.Join(l.dir, "snapshot.yaml")
	if err := os.WriteFile(file, e.configuration(l.hook.url), 0o600); err != nil {
		return of, 0, err
	}
	l.hook.expect(cloudEvents, false)
	s, err := l.startExporter(e)
	if err != nil {
		return of, 0, err
	}
	defer s.stop()
	if _, err := l.hook.wait(ctx, int64(n), s.process.Done()); err != nil {
		return of, 0, s.explain(err)
	}
	if err := s.waitReady(ctx); err != nil {
		return of, 0, err
	}
	select {
	case <-time.After(calmTime):
	case <-ctx.Done():
		return of, 0, ctx.Err()
	}
	if of[0], err = l.strain(ctx, s, loads[0], 0, func(context.Context) error { return nil }); err != nil {
		return of, 0, err
	}
	of[1], err = l.strain(ctx, s, loads[1], n, func(ctx context.Context) error {
		begin := time.Now()
		out, err := exec.CommandContext(ctx, l.programs["kubeferry"], "snapshot", "--config", file,
			"--pipeline", "pipeline-0", "--source", "all").CombinedOutput()
		took = time.Since(begin)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return of, took, err
}

// strain runs a load, and something beside it that has kubeferry send so many records more.
func (l *lab) strain(ctx context.Context, s *subject, w writing, records int, beside func(context.Context) error) (of strain, err error) {
	// The kernel begins anew with the peak (proc_pid_clear_refs(5)).
	if err := os.WriteFile(filepath.Join("/proc", fmt.Sprint(s.process.Pid()), "clear_refs"), []byte("5"), 0); err != nil {
		return of, err
	}
	l.hook.expect(cloudEvents, true)
	raw, err := l.watchRaw(ctx, w.path())
	if err != nil {
		return of, err
	}
	defer raw.stop()
	ended := make(chan error, 1)
	begin := time.Now()
	var end time.Time
	go func() {
		err := beside(ctx)
		end = time.Now()
		ended <- err
	}()
	changes, err := l.write(ctx, w)
	if err = errors.Join(err, <-ended); err != nil {
		return of, err
	}
	if _, err := l.hook.wait(ctx, int64(changes+records), s.process.Done()); err != nil {
		return of, s.explain(err)
	}
	if err := raw.wait(ctx, changes); err != nil {
		return of, err
	}
	u, err := s.usage()
	if err != nil {
		return of, s.explain(err)
	}
	seen := raw.stop()
	if records > 0 { // what came later was not beside it
		for version, at := range seen {
			if at.Before(begin) || at.After(end) {
				delete(seen, version)
			}
		}
	}
	of.peak = u.Peak
	of.delays, err = between(seen, l.hook.arrivals(), len(seen))
	l.say("    %d changes, of which %d count", changes, len(seen))
	return of, err
}
