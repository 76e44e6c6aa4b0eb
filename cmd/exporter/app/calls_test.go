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
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/internal/admin"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/sinks"
)

// hanging is a sink whose calls ignore their contexts.
type hanging struct {
	sinks.Sink
	entered, release chan struct{}
}

func (h hanging) Deliver(context.Context, []sinks.Record) error {
	h.entered <- struct{}{}
	<-h.release
	return nil
}

// A delivery that goes on long after its time-out makes the probe fail, and one that is late by less does not.
func TestHealthOfHangingSink(t *testing.T) {
	sink := hanging{entered: make(chan struct{}), release: make(chan struct{})}
	calls := &calls{Sink: sink}
	health := &health{}
	health.running.Store(&parts{
		sinks: map[string]OpenSink{"hook": {Sink: calls, calls: calls}},
		state: &state{committer: checkpoint.NewCommitter(nil, slog.New(slog.DiscardHandler))},
	})
	server, err := admin.Listen(t.Context(), "127.0.0.1:0", prometheus.NewRegistry(), health.probes(), slog.New(slog.DiscardHandler))
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
			_ = calls.Deliver(ctx, nil)
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
