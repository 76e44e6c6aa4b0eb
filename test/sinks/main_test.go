// Package sinks_test runs the sinks that need a real server against one: the suite of sinks/sinktest and what is
// particular to each.
package sinks_test

import (
	"context"
	"flag"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

func TestMain(m *testing.M) {
	asyncapi.Anything = true
	flag.Parse()
	// Tests that call t.Parallel wait most of the time. The default, a test for each core, would leave the cores idle.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	assets.Must(natstest.Prepare, kafkatest.Prepare)
	if assets.Selected("TestExtendedNATSInterop") {
		assets.Must(natstest.PrepareCLI)
	}
	if assets.Selected("TestExtendedOTLPCollector") {
		assets.Must(programs.Collector().Build)
	}
	goleak.VerifyTestMain(m)
}

// openSink validates config and opens a sink that is closed with the test.
func openSink(tb testing.TB, config sinks.Config) sinks.Sink {
	tb.Helper()
	for _, fault := range config.Validate() {
		if !fault.Warning {
			tb.Fatalf("configuration: %s: %s", fault.Path, fault.Message)
		}
	}
	sink, err := config.Open(tb.Context(), sinks.Env{Name: "test", UserAgent: "kubeferry/test", Logger: slog.New(slog.NewTextHandler(logWriter{tb}, nil))})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := sink.Close(ctx); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return sink
}

// newProxy stands between a sink and its peer, so that the peer can hang or go away without losing what it stored.
func newProxy(tb testing.TB) *proxy.TCP {
	tb.Helper()
	p := proxy.NewTCP(tb, "")
	p.Come()
	return p
}

type logWriter struct{ tb testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.tb.Logf("sink: %s", p[:len(p)-1])
	return len(p), nil
}

// within returns a context that ends after d, with the test at the latest.
func within(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}
