package bench

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// BenchmarkFilters is the way of an Event through a pipeline, with filters that all of them pass: what each kind of filter
// adds. Those that look inside pay for decoding.
func BenchmarkFilters(b *testing.B) {
	expression := func(text string) shape.Filter {
		program, err := expr.Compile(text, expr.Filter)
		if err != nil {
			b.Fatal(err)
		}
		return shape.NewExprFilter(program, "", shape.OnErrorPass)
	}
	types := shape.TypesFilter{delta.Added, delta.Modified}
	namespaces := shape.NamespacesFilter{Include: []string{"shop-*"}}
	for _, c := range []struct {
		name    string
		filters []shape.Filter
	}{
		{"none", nil},
		{"types, namespaces", []shape.Filter{types, namespaces}},
		{"expr of identity", []shape.Filter{expression(`object.metadata.namespace != "sandbox" && type != "DELETED"`)}},
		{"expr", []shape.Filter{expression(`object.type == "Warning"`)}},
		{"three expr", []shape.Filter{
			expression(`object.type == "Warning"`),
			expression(`object.reason in ["BackOff", "FailedScheduling", "Unhealthy"]`),
			expression(`object.?count.orValue(1) % 10 <= 1 && object.involvedObject.kind == "Pod"`),
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, stop := runningWith(shape.FormatCloudEvents, func(o *pipeline.Options) { o.Filters = c.filters })
			defer stop()
			frames := make([][]byte, 5000)
			for n := range frames {
				frames[n] = event(n)
			}
			gvr := schema.GroupVersionResource{Version: "v1", Resource: "events"}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				object, err := delta.NewObject(frames[n%len(frames)])
				if err != nil {
					b.Fatal(err)
				}
				n++
				d := &delta.Delta{Type: delta.Added, Resource: gvr, Watch: "w", Object: object, Observed: time.Now()}
				if err := handOver(b.Context(), p, d); err != nil {
					b.Fatal(err)
				}
			}
			p.Drain(b.Context())
			if stats := p.Stats(); stats.Filtered > 0 {
				b.Fatalf("%d were filtered out", stats.Filtered)
			}
		})
	}
}

// handOver hands a delta to a pipeline, as of an object that passed its filters before.
func handOver(ctx context.Context, p *pipeline.Pipeline, d *delta.Delta) error {
	ticket, err := p.Reserve(ctx, d, true)
	if err == nil {
		p.Take(ticket)
	}
	return err
}
