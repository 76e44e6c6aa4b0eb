package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/source"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// noDisk takes every commit at once.
type noDisk struct{}

func (noDisk) Commit(*checkpoint.Commit) error { return nil }
func (noDisk) Logs() map[string]delta.LogSize  { return nil }
func (noDisk) Info() checkpoint.Info           { return checkpoint.Info{} }

// moments counts what was handed over, and looks in each commit whether the pipelines have just as much.
type moments struct {
	t         *testing.T
	handed    []uint64 // by pipeline
	pipelines []*pipeline.Pipeline
	captures  int
}

func (m *moments) Capture(*checkpoint.Commit) {
	m.captures++
	for n, p := range m.pipelines {
		if s := p.Stats(); s.Received != m.handed[n] {
			m.t.Errorf("a commit sees %d of %d deltas of %s", s.Received, m.handed[n], p.Name())
		}
	}
}

func (*moments) Committed(map[string]delta.LogSize) {}

func (*moments) Failed() {}

// A delta, and what its watch records of it, are placed in one moment, in the pipelines that it is for and in no others.
func TestHandOverIsOneMoment(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	kept := &state{committer: checkpoint.NewCommitter(noDisk{}, logger)}
	f := &fanOut{committer: kept.committer}
	m := &moments{t: t, handed: make([]uint64, 2)}
	registry := pipeline.NewMetrics(prometheus.NewRegistry())
	running, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		p := pipeline.New(pipeline.Options{
			Options:  shape.Options{Name: name, Cluster: "c", Format: shape.FormatRaw},
			MaxBytes: 1 << 20, Sink: newScript(1), DeadLetter: pipeline.NoLetters{},
			Retry:  pipeline.Retry{Initial: time.Millisecond, Max: time.Millisecond},
			Limits: sinks.Limits{MaxRecords: 100, MaxBytes: 1 << 20, Concurrency: 1, Timeout: time.Second},
		}, registry, logger)
		f.pipelines = append(f.pipelines, p)
		all.Go(func() { p.Run(running) })
	}
	m.pipelines = f.pipelines
	kept.committer.Register(m)
	all.Go(func() {
		for running.Err() == nil {
			if err := kept.committer.Begin(); err != nil { // any commit does
				t.Error(err)
			}
		}
	})
	var mu sync.Mutex // several watches note in one place here
	var watches sync.WaitGroup
	for watch := range 2 {
		watches.Go(func() {
			for n := range 5000 {
				object, err := delta.NewObject(fmt.Appendf(nil,
					`{"kind":"Thing","metadata":{"name":"o%d-%d","uid":"u","resourceVersion":"%d"}}`, watch, n%10, n+1))
				if err != nil {
					t.Error(err)
					return
				}
				d := &delta.Delta{Type: delta.Modified, Resource: sourcetest.Things, Object: object, Observed: time.Now()}
				to := source.Recipients{Pipelines: []source.PipelineSet{0b11, 0b01, 0b10, 0}[n%4]}
				err = f.Delta(context.Background(), d, to, func(source.PipelineSet) {
					mu.Lock()
					defer mu.Unlock()
					if n%4 < 2 {
						m.handed[0]++
					}
					if n%2 == 0 {
						m.handed[1]++
					}
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	watches.Wait()
	stop()
	all.Wait()
	m.Capture(nil)
	if m.handed[0] != 5000 || m.handed[1] != 5000 || m.captures < 100 {
		t.Errorf("handed over %v in %d commits", m.handed, m.captures)
	}
}
