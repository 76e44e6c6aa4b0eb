package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// crowd is a sink, and its configuration, that counts the calls under way.
type crowd struct {
	sinks.Common

	mu                     sync.Mutex // guards what follows
	underway, most, stored int
}

func (c *crowd) Validate() []sinks.Fault { return nil }

func (c *crowd) Open(context.Context, sinks.Env) (sinks.Sink, error) { return c, nil }

func (c *crowd) Deliver(_ context.Context, batch []sinks.Record) error {
	c.mu.Lock()
	c.underway++
	c.most = max(c.most, c.underway)
	c.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underway--
	c.stored += len(batch)
	return nil
}

func (c *crowd) Close(context.Context) error { return nil }

// Two pipelines that name the same sink have its concurrency together, not each.
func TestPipelinesShareConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const concurrency, each = 3, 50
		sink := &crowd{Common: sinks.Common{Batch: sinks.Batch{MaxRecords: 1, MaxBytes: 1 << 20}, Concurrency: concurrency, Timeout: time.Minute}}
		loaded := &config.Config{Cluster: "c", Sinks: []config.Sink{{Name: "shared", Kind: "crowd", Config: sink}}}
		for _, name := range []string{"p", "q"} {
			loaded.Pipelines = append(loaded.Pipelines, config.Pipeline{
				Name: name, Sink: "shared", Format: shape.FormatJSON, Backlog: config.Backlog{MaxBytes: 1 << 20},
			})
		}
		log := slog.New(slog.DiscardHandler)
		opened, err := OpenSinks(t.Context(), loaded.Sinks, "test", log)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		pipelines, err := newPipelines(loaded, opened, nil, nil, &state{}, pipeline.NewMetrics(prometheus.NewRegistry()), log)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pipelines {
			running.Go(func() { p.Run(ctx) })
			for n := range each {
				object, err := delta.NewObject(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a-%d","uid":"u-%d","resourceVersion":"%d"}}`, n, n, n+1))
				if err != nil {
					t.Fatal(err)
				}
				ticket, err := p.Reserve(ctx, &delta.Delta{Type: delta.Modified, Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Object: object, Observed: time.Now()}, true)
				if err != nil {
					t.Fatal(err)
				}
				p.Take(ticket)
			}
		}
		time.Sleep(time.Minute)
		cancel()
		running.Wait()
		if sink.most != concurrency || sink.stored != 2*each {
			t.Errorf("got %d calls at once and %d records, want %d and %d", sink.most, sink.stored, concurrency, 2*each)
		}
	})
}
