package shape

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// Explain returns what Shape does: whether a change is taken, and the record that it becomes.
func TestExplainIsShape(t *testing.T) {
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
		return Options{Name: "p", Cluster: "c", Redactor: redactor, Format: FormatJSON}
	}
	configured := map[string]Options{"plain": options()}
	for name, set := range map[string]func(*Options){
		"types":      func(o *Options) { o.Filters = []Filter{TypesFilter{delta.Added, delta.Deleted}} },
		"namespaces": func(o *Options) { o.Filters = []Filter{NamespacesFilter{Exclude: []string{"shop"}}} },
		"changed":    func(o *Options) { o.Filters = []Filter{ChangedFilter{spec}} },
		"expr":       func(o *Options) { o.Filters = []Filter{NewExprFilter(program, "", OnErrorPass)} },
		"drop":       func(o *Options) { o.Filters = []Filter{NewExprFilter(program, "", OnErrorDrop)} },
		"deadLetter": func(o *Options) { o.Filters = []Filter{NewExprFilter(program, "", OnErrorDeadLetter)} },
		"leave": func(o *Options) {
			o.OnLeave, o.Filters = OnLeaveDeleted, []Filter{NewExprFilter(program, "", OnErrorDrop)}
		},
		"patch": func(o *Options) { o.Diff = DiffJSONPatch },
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
						p := start(t, func(o *Options) { *o = options })
						got := p.Explain(context.Background(), d, before, redactor)
						want := p.Shape(context.Background(), d, before)
						if got.Taken != (want.Delta != nil) || got.Passes != want.Passes {
							t.Fatalf("%s of %s after %v: taken %v, passes %v, want %v, %v", kind, text, before, got.Taken, got.Passes, want.Delta != nil, want.Passes)
						}
						if !got.Taken {
							continue
						}
						if (got.DeadLetter != nil) != (want.Err != nil) {
							t.Errorf("dead letter: got %v, want %v", got.DeadLetter, want.Err)
						}
						if record, _, _ := p.encoder.Encode(nil, &delta.Entry{Delta: want.Delta}); !reflect.DeepEqual(got.Record, record) {
							t.Errorf("%s of %s: got %s, want %s", kind, text, got.Record.Body, record.Body)
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
