package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// known is kubeferry on the objects of loadKnown.
func known() exporter { return exporter{resources: knownResources(), selector: "bench=known"} }

const (
	// calmTime is how long after the last record the garbage collector and the last commit may take.
	calmTime = 5 * time.Second
	// idleTime is how long the CPU time of an idle process is watched.
	idleTime = 30 * time.Second
)

func idle(ctx context.Context, l *lab) ([]check, error) {
	n, err := l.loadKnown(ctx)
	if err != nil {
		return nil, err
	}
	last, share, err := l.rest(ctx, n, known())
	if err != nil {
		return nil, err
	}
	return []check{
		alone("RSS, MiB", mebi(last.RSS), atMost(80, "≤ 80 MiB")),
		alone("CPU, % of a core over 30 s", share, atMost(0.5, "< 0.5 %")),
		alone("peak RSS before, MiB", mebi(last.Peak), nil),
	}, nil
}

// rest lets kubeferry deliver n objects and then idle; share is the part of a core that it uses meanwhile, in percent.
func (l *lab) rest(ctx context.Context, n int, e exporter) (u usage, share float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	l.hook.expect(cloudEvents, false)
	s, err := l.startExporter(e)
	if err != nil {
		return u, 0, err
	}
	defer s.stop()
	if _, err := l.hook.wait(ctx, int64(n), s.process.Done()); err != nil {
		return u, 0, s.explain(err)
	}
	var before usage
	for _, wait := range []time.Duration{calmTime, idleTime} {
		before = u
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return u, 0, ctx.Err()
		}
		if u, err = s.usage(); err != nil {
			return u, 0, s.explain(err)
		}
	}
	return u, 100 * (u.CPU - before.CPU).Seconds() / idleTime.Seconds(), nil
}

func restart(ctx context.Context, l *lab) ([]check, error) {
	n, err := l.loadKnown(ctx)
	if err != nil {
		return nil, err
	}
	e := known()
	if e.stateDir, err = l.knownStateDir("restart"); err != nil {
		return nil, err
	}
	if _, err := l.backlog(ctx, cloudEvents, n, func() (*subject, error) { return l.startExporter(e) }); err != nil {
		return nil, err
	}
	var took, memory []float64
	for round := range l.pairs {
		for i := range kinds {
			err := l.send(ctx, write{
				method: http.MethodPatch, path: fmt.Sprintf("%s/web-%06d", collectionPath(i), i),
				body: fmt.Appendf(nil, `{"metadata":{"annotations":{"round":"%d-%d"}}}`, l.runs, round),
			})
			if err != nil {
				return nil, err
			}
		}
		s, err := l.backlog(ctx, cloudEvents, len(kinds), func() (*subject, error) { return l.startExporter(e) })
		if err != nil {
			return nil, err
		}
		if s.Records != int64(len(kinds)) {
			return nil, fmt.Errorf("got %d records after the restart, want %d", s.Records, len(kinds))
		}
		l.say("    %.2f s, %.2f s CPU, %.1f MiB peak", s.Wall.Seconds(), s.CPU.Seconds(), mebi(s.Peak))
		took, memory = append(took, s.Wall.Seconds()), append(memory, mebi(s.Peak))
	}
	return []check{
		alone("caught up after, s", median(took), atMost(3, "< 3 s")),
		alone("peak RSS, MiB", median(memory), nil),
	}, nil
}

// millionKnown prepares a checkpoint of 1,000,000 known objects. change makes a change that a kubeferry with it sends.
func (l *lab) millionKnown(ctx context.Context, dir string) (e exporter, change func() error, err error) {
	n := l.scaled(1_000_000)
	if err := l.namespace(ctx, "million"); err != nil {
		return e, nil, err
	}
	e = exporter{resources: []string{"v1/configmaps"}, selector: "bench=" + dir}
	if e.stateDir, err = l.knownStateDir(dir); err != nil {
		return e, nil, err
	}
	change = func() error {
		l.runs++
		return l.send(ctx, write{
			method: http.MethodPost, path: "/api/v1/namespaces/million/configmaps",
			body: fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"change-%d","labels":{"bench":%q}}}`, l.runs, dir),
		})
	}
	// The first run makes a checkpoint with a position, into which the known set is then written.
	if err := change(); err != nil {
		return e, nil, err
	}
	if _, err := l.backlog(ctx, cloudEvents, 1, func() (*subject, error) { return l.startExporter(e) }); err != nil {
		return e, nil, err
	}
	l.say("    writing a checkpoint of %d known objects", n)
	return e, change, inflate(e.stateDir, n)
}

func million(ctx context.Context, l *lab) ([]check, error) {
	e, change, err := l.millionKnown(ctx, "million")
	if err != nil {
		return nil, err
	}
	var took, memory, cpu []float64
	for range l.pairs {
		if err := change(); err != nil {
			return nil, err
		}
		s, err := l.backlog(ctx, cloudEvents, 1, func() (*subject, error) { return l.startExporter(e) })
		if err != nil {
			return nil, err
		}
		if s.Records != 1 {
			return nil, fmt.Errorf("got %d records, want 1: the watch did not go on where it was", s.Records)
		}
		l.say("    %.2f s, %.2f s CPU, %.1f MiB peak, %.1f then", s.Wall.Seconds(), s.CPU.Seconds(), mebi(s.Peak), mebi(s.RSS))
		took, memory, cpu = append(took, s.Wall.Seconds()), append(memory, mebi(s.Peak)), append(cpu, s.CPU.Seconds())
	}
	return []check{
		alone("first record after, s", median(took), atMost(10, "≤ 10 s")),
		alone("peak RSS, MiB", median(memory), atMost(400, "≤ 400 MiB")),
		alone("CPU, s", median(cpu), nil),
	}, nil
}

// inflate adds n known objects to the only watch of a checkpoint.
func inflate(dir string, n int) (err error) {
	store, err := checkpoint.Open(dir, func(string, error) {})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	var watch string
	var meta json.RawMessage
	err = store.Watches(func(id string, m []byte) error {
		watch, meta = id, append(json.RawMessage(nil), m...)
		return nil
	})
	if err != nil {
		return err
	}
	if watch == "" {
		return errors.New("the checkpoint has no watch")
	}
	const chunk = 50_000
	for first := 0; first < n; first += chunk {
		change := delta.WatchChange{Watch: watch, Meta: meta}
		for i := first; i < min(n, first+chunk); i++ {
			change.Put = append(change.Put, delta.Known{
				Namespace: fmt.Sprintf("team-%02d", i%50), Name: fmt.Sprintf("web-6d4cf56db6-%07d", i),
				Version: delta.NewVersion(uuid.NewUUID(), fmt.Sprint(1000+i)),
			})
		}
		if err := store.Commit(&checkpoint.Commit{Watches: []delta.WatchChange{change}}); err != nil {
			return err
		}
	}
	return nil
}
