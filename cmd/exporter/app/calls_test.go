package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/admin"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// hanging is a sink, and its configuration, whose calls ignore their contexts.
type hanging struct {
	crowd
	entered, release chan struct{}
}

func (h *hanging) Open(context.Context, sinks.Env) (sinks.Sink, error) { return h, nil }

func (h *hanging) Deliver(context.Context, []sinks.Record) error {
	h.entered <- struct{}{}
	<-h.release
	return nil
}

// A delivery that goes on long after its time-out makes the probe fail, and one that is late by less does not.
func TestHealthOfHangingSink(t *testing.T) {
	sink, log := &hanging{entered: make(chan struct{}), release: make(chan struct{})}, slog.New(slog.DiscardHandler)
	opened, err := OpenSinks(t.Context(), []config.Sink{{Name: "hook", Config: sink}}, "test", log)
	if err != nil {
		t.Fatal(err)
	}
	health := &health{}
	health.running.Store(&parts{sinks: opened})
	server, err := admin.Listen(t.Context(), "127.0.0.1:0", prometheus.NewRegistry(), health.probes(), log)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(); err != nil {
			t.Error(err)
		}
	})
	defer func() {
		if err := server.Close(context.Background()); err != nil {
			t.Error(err)
		}
		serving.Wait()
	}()
	expect := func(status int, part string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Address()+"/healthz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != status || !strings.Contains(string(text), part) {
			t.Errorf("got %d %s, want %d %s", response.StatusCode, text, status, part)
		}
	}
	var delivering sync.WaitGroup
	deliver := func(overdue time.Duration) {
		ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-overdue))
		delivering.Go(func() {
			defer cancel()
			_ = opened["hook"].Deliver(ctx, nil)
		})
		<-sink.entered
	}
	deliver(stalledAfter / 2)
	expect(http.StatusOK, "ok")
	deliver(stalledAfter + time.Second)
	expect(http.StatusServiceUnavailable, `a delivery to sink "hook" goes on 31s after its time-out`)
	close(sink.release)
	delivering.Wait()
	expect(http.StatusOK, "ok")
}

// A pipeline that does not run makes the probe fail, and an idle one that runs does not.
func TestHealthOfStalledPipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := pipeline.Options{Options: shape.Options{Name: "p"}, Limits: sinks.Limits{Concurrency: 1}}
		p := pipeline.New(options, pipeline.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		health := &health{}
		health.running.Store(&parts{pipelines: []*pipeline.Pipeline{p}})
		time.Sleep(stalledAfter + time.Second)
		if err := health.healthy(); err == nil || err.Error() != `pipeline "p" has not moved for 31s` {
			t.Errorf("got %v for a pipeline that never ran", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { p.Run(ctx) })
		time.Sleep(stalledAfter + time.Second)
		if err := health.healthy(); err != nil {
			t.Error(err)
		}
		cancel()
		running.Wait()
	})
}
