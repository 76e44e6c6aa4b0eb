package pipeline

import (
	"bytes"
	"context"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
	"github.com/kubeferry/kubeferry/sinks"
)

func explaining(t *testing.T, options Options) *Pipeline {
	options.Name, options.Cluster, options.MaxBytes = "p", "c", 1<<20
	options.Limits = sinks.Limits{MaxRecords: 1, MaxBytes: 1 << 20, Concurrency: 1}
	options.DeadLetter = LogOnly{}
	p := New(options, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	t.Cleanup(p.backlog.queue.ShutDown)
	return p
}

// Explain returns what Reserve does: whether a change is taken, and the record that it becomes.
func TestExplainIsReserve(t *testing.T) {
	program, err := expr.Compile(`object.spec.n > 2`, expr.Filter)
	if err != nil {
		t.Fatal(err)
	}
	value, err := expr.Compile(`object.metadata.name`, expr.Value)
	if err != nil {
		t.Fatal(err)
	}
	one, err := expr.Compile("1", expr.Value)
	if err != nil {
		t.Fatal(err)
	}
	spec, label := fieldpath.Of("spec"), fieldpath.Of("metadata", "labels", "name")
	redactor := NewRedactor([]byte("key"), "c")
	options := func() Options {
		return Options{Redactor: redactor, Format: FormatJSON}
	}
	configured := map[string]Options{"plain": options()}
	for name, set := range map[string]func(*Options){
		"types":      func(o *Options) { o.Filters = []Filter{TypesFilter{delta.Added, delta.Deleted}} },
		"namespaces": func(o *Options) { o.Filters = []Filter{NamespacesFilter{Exclude: []string{"shop"}}} },
		"changed":    func(o *Options) { o.Filters = []Filter{ChangedFilter{spec}} },
		"expr":       func(o *Options) { o.Filters = []Filter{NewExprFilter(program, OnErrorPass)} },
		"drop":       func(o *Options) { o.Filters = []Filter{NewExprFilter(program, OnErrorDrop)} },
		"deadLetter": func(o *Options) { o.Filters = []Filter{NewExprFilter(program, OnErrorDeadLetter)} },
		"leave":      func(o *Options) { o.OnLeave, o.Filters = OnLeaveDeleted, []Filter{NewExprFilter(program, OnErrorDrop)} },
		"patch":      func(o *Options) { o.Diff = DiffJSONPatch },
		"set": func(o *Options) {
			o.Diff = DiffOldObject
			o.Transforms = []Transform{RemoveTransform{fieldpath.Of("status")}, SetTransform{{label, value}}, RedactTransform{redactor, []fieldpath.Path{spec}}}
		},
		"fails": func(o *Options) {
			o.Transforms = []Transform{SetTransform{{fieldpath.Of("metadata", "name", "x"), one}}}
		},
	} {
		o := options()
		set(&o)
		configured[name] = o
	}
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	for name, options := range configured {
		t.Run(name, func(t *testing.T) {
			for n, text := range []string{`{"spec":{"n":1}}`, `{"spec":{"n":3},"status":{}}`, `{"data":{"a":"cGxhbnRlZA=="}}`} {
				for _, kind := range []delta.Type{delta.Added, delta.Modified, delta.Deleted} {
					for _, before := range []bool{false, true} {
						d := change(t, "a", n+2)
						d.Type, d.Object = kind, withContent(t, d.Object, text)
						if n == 2 {
							d.Resource = secrets
						}
						if kind == delta.Modified {
							d.Old = withContent(t, change(t, "a", n+1).Object, `{"spec":{"n":1}}`)
						}
						p := explaining(t, options)
						got := p.Explain(context.Background(), d, before, redactor)
						ticket, err := p.Reserve(context.Background(), d, before)
						if err != nil {
							t.Fatal(err)
						}
						if got.Taken == ticket.filtered || got.Passes != ticket.Passes() {
							t.Fatalf("%s of %s after %v: taken %v, passes %v, want %v, %v", kind, text, before, got.Taken, got.Passes, !ticket.filtered, ticket.Passes())
						}
						if !got.Taken {
							continue
						}
						if (got.DeadLetter != nil) != (ticket.item.err != nil) {
							t.Errorf("dead letter: got %v, want %v", got.DeadLetter, ticket.item.err)
						}
						if want, _ := p.encoder.encode(nil, ticket.item); !reflect.DeepEqual(got.Record, want) {
							t.Errorf("%s of %s: got %s, want %s", kind, text, got.Record.Body, want.Body)
						}
						if stats := p.Stats(); stats.Received != 0 {
							t.Error("an explanation is counted")
						}
					}
				}
			}
		})
	}
}

// withContent is the object with further members.
func withContent(t *testing.T, object *delta.Object, members string) *delta.Object {
	t.Helper()
	raw := bytes.Replace(object.JSON(), []byte(`,"spec":{}}`), []byte(","+strings.TrimPrefix(members, "{")), 1)
	made, err := delta.NewObject(raw)
	if err != nil {
		t.Fatal(err)
	}
	return made
}
