package bench

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// lockedSink takes nothing before it is opened.
type lockedSink struct{ open chan struct{} }

func (s lockedSink) Deliver(ctx context.Context, _ []sinks.Record) error {
	select {
	case <-s.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (lockedSink) Close(context.Context) error { return nil }

// BenchmarkSpill spills a million records of 1 KB and reads them back, of one namespace and of 300.
func BenchmarkSpill(b *testing.B) {
	const records = 1_000_000
	for _, namespaces := range []int{1, 300} {
		b.Run(fmt.Sprint(namespaces), func(b *testing.B) {
			for b.Loop() {
				spill(b, records, namespaces)
			}
		})
	}
}

func spill(b *testing.B, records, namespaces int) {
	b.Helper()
	store, err := checkpoint.Open(b.TempDir(), func(message string, err error) { b.Error(message, err) })
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	committer := checkpoint.NewCommitter(store, slog.New(slog.DiscardHandler))
	sink := lockedSink{make(chan struct{})}
	p, stop := runningWith(shape.FormatCloudEvents, func(o *pipeline.Options) {
		o.Log, o.Spill, o.MaxDiskBytes, o.Sink, o.MaxBytes = benchLog{store, committer}, true, 8<<30, sink, 64<<20
		o.Limits.Timeout = time.Hour
	})
	defer stop()
	committer.Register(logState{p})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { committer.Run(ctx) })
	defer running.Wait()
	defer cancel()
	before := cpu(b)
	filler := fmt.Sprintf("%0800d", 7)
	for n := range records {
		object, err := delta.NewObject(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"e-%d","namespace":"team-%d","uid":"u-%d","resourceVersion":"%d"},"message":%q}`,
			n, n*7919%namespaces, n, n+1, filler))
		if err != nil {
			b.Fatal(err)
		}
		d := &delta.Delta{Type: delta.Added, Resource: schema.GroupVersionResource{Version: "v1", Resource: "events"}, Watch: "w", Object: object, Observed: time.Now()}
		ticket, err := p.Reserve(b.Context(), d, true)
		if err != nil {
			b.Fatal(err)
		}
		committer.WithoutCapture(func() { p.Take(ticket) })
	}
	close(sink.open)
	if left := p.Drain(b.Context()); left > 0 {
		b.Fatalf("%d are left", left)
	}
	b.ReportMetric((cpu(b)-before).Seconds()*1e6/float64(records), "µs-CPU/record")
}

// cpu is the user and system time of the process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
