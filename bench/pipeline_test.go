package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// discard acknowledges everything at once.
type discard struct{}

func (discard) Deliver(_ context.Context, batch []sinks.Record) error {
	for i := range batch {
		_, _ = io.Discard.Write(batch[i].Body)
	}
	return nil
}

func (discard) Close(context.Context) error { return nil }

// event is about what an Event of the kubelet looks like: 1.2 KB, a third of it managedFields.
func event(n int) []byte {
	return fmt.Appendf(nil, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"web-%[1]d.18a2b3c4d5e6f","namespace":"shop-%[2]d","uid":"4f0c1e10-1267-466d-aa8d-%012[1]d","resourceVersion":"%[1]d","creationTimestamp":"2026-11-21T00:12:03Z","managedFields":[{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-11-21T00:12:03Z","fieldsType":"FieldsV1","fieldsV1":{"f:count":{},"f:firstTimestamp":{},"f:involvedObject":{},"f:lastTimestamp":{},"f:message":{},"f:reason":{},"f:reportingComponent":{},"f:source":{"f:component":{},"f:host":{}},"f:type":{}}}]},"involvedObject":{"kind":"Pod","namespace":"shop-%[2]d","name":"web-%[1]d","uid":"9c0c1e10-1267-466d-aa8d-%012[1]d","apiVersion":"v1","resourceVersion":"42","fieldPath":"spec.containers{web}"},"reason":"BackOff","message":"%[3]s","source":{"component":"kubelet","host":"node-7"},"firstTimestamp":"2026-11-21T00:12:03Z","lastTimestamp":"2026-11-21T00:12:03Z","count":1,"type":"Warning","eventTime":null,"reportingComponent":"kubelet","reportingInstance":"node-7"}`,
		n, n%50, strings.Repeat("Back-off restarting failed container ", 5))
}

// BenchmarkPipeline is the whole way of a delta but for the network: reading the object's metadata, cutting
// managedFields out, backlog, batch, envelope, settling.
func BenchmarkPipeline(b *testing.B) {
	for _, format := range []shape.Format{shape.FormatCloudEvents, shape.FormatCloudEventsBinary, shape.FormatJSON, shape.FormatRaw} {
		b.Run(string(format), func(b *testing.B) {
			p, stop := running(format)
			defer stop()
			frames := make([][]byte, 5000)
			for n := range frames {
				frames[n] = event(n)
			}
			gvr := schema.GroupVersionResource{Version: "v1", Resource: "events"}
			b.ReportAllocs()
			b.SetBytes(int64(len(frames[0])))
			n := 0
			for b.Loop() {
				object, err := delta.NewObject(frames[n%len(frames)])
				if err != nil {
					b.Fatal(err)
				}
				n++
				err = handOver(b.Context(), p, &delta.Delta{Type: delta.Added, Resource: gvr, Watch: "w", Object: object, Observed: time.Now()})
				if err != nil {
					b.Fatal(err)
				}
			}
			p.Drain(b.Context())
		})
	}
}

func running(format shape.Format) (*pipeline.Pipeline, func()) {
	return runningWith(format, func(*pipeline.Options) {})
}

func runningWith(format shape.Format, adjust func(*pipeline.Options)) (*pipeline.Pipeline, func()) {
	options := pipeline.Options{
		Options:  shape.Options{Name: "bench", Cluster: "bench", Format: format},
		MaxBytes: 64 << 20,
		Retry:    pipeline.Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second},
		Sink:     discard{}, SinkName: "discard", DeadLetter: pipeline.NoLetters{},
		Limits: sinks.Limits{MaxRecords: 100, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond, Concurrency: 2, Timeout: 10 * time.Second},
	}
	adjust(&options)
	p := pipeline.New(options, pipeline.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { p.Run(ctx) })
	return p, func() {
		cancel()
		done.Wait()
	}
}
