package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeferry/kubeferry/test/load"
)

// writing is a load of Events in a namespace of its own.
type writing struct {
	namespace  string
	operations int
	// pace is the number of writes per second; 0 is as fast as the server takes them.
	pace int
}

// newWriting makes the namespace; every run needs one, because what an earlier one left would count as backlog.
func (l *lab) newWriting(ctx context.Context, operations, pace int) (writing, error) {
	l.runs++
	w := writing{namespace: fmt.Sprintf("live-%d", l.runs), operations: operations, pace: pace}
	return w, l.namespace(ctx, w.namespace)
}

func (w writing) path() string { return "/api/v1/namespaces/" + w.namespace + "/events" }

func (w writing) exporter() exporter {
	return exporter{resources: []string{"v1/events"}, namespace: w.namespace}
}

// run writes, and returns how many changes that made. The seed is the same each time.
func (l *lab) write(ctx context.Context, w writing) (changes int, err error) {
	o := load.Options{
		Resources: []load.Resource{load.Events()}, Namespaces: []string{w.namespace},
		Objects: 400, Operations: w.operations, Concurrency: 8, Seed: 6, Size: 600, // and as much again from the API server
	}
	if w.pace > 0 {
		tick := time.NewTicker(time.Second / time.Duration(w.pace))
		defer tick.Stop()
		o.OnWrite = func(int64) {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}
	result, err := load.Run(ctx, l.config, o)
	if err != nil {
		return 0, err
	}
	return result.Created + result.Updated + result.Deleted, nil
}

// follow runs a program beside a load of its own; what it uses before the load does not count.
func (l *lab) follow(ctx context.Context, f form, operations int, start func(w writing) (*subject, error), ready func(ctx context.Context, s *subject) error) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	w, err := l.newWriting(ctx, operations, 0)
	if err != nil {
		return sample{}, err
	}
	l.hook.expect(f, false)
	s, err := start(w)
	if err != nil {
		return sample{}, err
	}
	defer s.stop()
	if err := ready(ctx, s); err != nil {
		return sample{}, err
	}
	before, err := s.usage()
	if err != nil {
		return sample{}, s.explain(err)
	}
	changes, err := l.write(ctx, w)
	if err != nil {
		return sample{}, err
	}
	got, err := l.hook.wait(ctx, int64(changes), s.process.Done())
	if err != nil {
		return sample{}, s.explain(err)
	}
	return s.sample(ctx, got, before)
}

// floorWatches and exporterWatches return once a watch is open.
func floorWatches(ctx context.Context, s *subject) error { return s.waitLogged(ctx, "floor: watching") }

func exporterWatches(ctx context.Context, s *subject) error { return s.waitReady(ctx) }

func (l *lab) liveFloor(operations int) side {
	return side{name: "floor", run: func(ctx context.Context) (sample, error) {
		return l.follow(ctx, frames, operations, func(w writing) (*subject, error) { return l.startFloor(w.path(), true) }, floorWatches)
	}}
}

// liveExporter is kubeferry as it runs by default, but for what adjust changes.
func (l *lab) liveExporter(name string, operations int, adjust ...func(*exporter)) side {
	return side{name: name, run: func(ctx context.Context) (sample, error) {
		return l.follow(ctx, cloudEvents, operations, func(w writing) (*subject, error) {
			e := w.exporter()
			for _, change := range adjust {
				change(&e)
			}
			return l.startExporter(e)
		}, exporterWatches)
	}}
}

// liveWrites is the length of a live run: some ten seconds.
const liveWrites = 12_000

func live(ctx context.Context, l *lab) ([]check, error) {
	n := l.scaled(liveWrites)
	of, err := l.paired(ctx, l.liveFloor(n), l.liveExporter("kubeferry", n))
	if err != nil {
		return nil, err
	}
	return []check{
		of.against("CPU per change, µs", cpuEach, atMost(1.5, "≤ 1.5 × floor")),
		of.against("peak RSS, MiB", peak, nil),
		of.against("changes/s", speed, nil),
	}, nil
}

func stateLive(ctx context.Context, l *lab) ([]check, error) {
	n := l.scaled(liveWrites)
	of, err := l.paired(ctx, l.liveExporter("without", n, func(e *exporter) { e.stateless = true }), l.liveExporter("with", n))
	if err != nil {
		return nil, err
	}
	return []check{of.named("without", "with").against("CPU per change, µs", cpuEach, atMost(1.05, "≤ 1.05 × without"))}, nil
}

// knownStateDir is a state directory that outlives a run.
func (l *lab) knownStateDir(name string) (string, error) {
	dir := filepath.Join(l.dir, name)
	return dir, os.RemoveAll(dir)
}
