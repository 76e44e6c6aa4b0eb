package shape

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apijson "k8s.io/apimachinery/pkg/util/json"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

func path(t testing.TB, text string) fieldpath.Path {
	t.Helper()
	p, err := fieldpath.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

func program(t testing.TB, text string) *expr.Program {
	t.Helper()
	p, err := expr.Compile(text, expr.Value)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

func renaming(t testing.TB, from, to string) fieldpath.Move {
	t.Helper()
	move, err := fieldpath.NewMove(path(t, from), path(t, to))
	if err != nil {
		t.Fatalf("%s to %s: %v", from, to, err)
	}
	return move
}

// fixedInput is the input of a transform that is tested alone.
type fixedInput struct{ object, old map[string]any }

func (f fixedInput) Object() (map[string]any, error)     { return f.object, nil }
func (f fixedInput) OldObject() (map[string]any, error)  { return f.old, nil }
func (fixedInput) Type() string                          { return string(delta.Modified) }
func (fixedInput) Resource() schema.GroupVersionResource { return pods }
func (fixedInput) Ref() delta.Ref                        { return delta.Ref{Resource: pods, Namespace: "shop", Name: "web"} }
func (fixedInput) Snapshot() bool                        { return false }
func (fixedInput) Inferred() bool                        { return false }
func (fixedInput) ChangedBy() []map[string]string        { return nil }

func TestTransforms(t *testing.T) {
	redactor := NewRedactor([]byte("0123456789abcdef"), "c")
	digest := func(at string, value any) string {
		d, err := redactor.value(fixedInput{}.Ref(), path(t, at), value)
		if err != nil {
			t.Fatal(err)
		}
		return d.(string)
	}
	for name, test := range map[string]struct {
		transform         Transform
		object, want, err string
	}{
		"remove": {RemoveTransform{path(t, "a.b"), path(t, "c[*].d")}, `{"a":{"b":1,"x":2},"c":[{"d":1},{"e":2}]}`, `{"a":{"x":2},"c":[{},{"e":2}]}`, ""},
		"keep":   {KeepTransform{path(t, "a.b"), path(t, "c")}, `{"a":{"b":1,"x":2},"c":[1],"d":1}`, `{"a":{"b":1},"c":[1]}`, ""},
		"redact": {
			RedactTransform{redactor, []fieldpath.Path{path(t, "a"), path(t, "b[*]"), path(t, "none")}},
			`{"a":{"z":1,"y":"<&>"},"b":["text",1,1.5,true,null,[1],"` + digest("b[6]", "kept") + `"]}`,
			`{"a":"` + digest("a", map[string]any{"z": 1, "y": "<&>"}) + `","b":["` + strings.Join([]string{
				digest("b[0]", "text"), digest("b[1]", 1), digest("b[2]", 1.5), digest("b[3]", true), digest("b[4]", nil), digest("b[5]", []any{1}),
				digest("b[6]", "kept"),
			}, `","`) + `"]}`, "",
		},
		"redact the copy": {
			RedactTransform{redactor, []fieldpath.Path{path(t, "spec.a")}},
			`{"metadata":{"annotations":{"x":"y","` + delta.LastApplied + `":"{\"spec\":{\"a\":\"s3cret\"}}"}}}`,
			`{"metadata":{"annotations":{"x":"y","` + delta.LastApplied + `":"` + digest(`metadata.annotations["`+delta.LastApplied+`"]`, `{"spec":{"a":"s3cret"}}`) + `"}}}`, "",
		},
		"rename":       {RenameTransform{renaming(t, "a.b", "c.d"), renaming(t, "x", "y")}, `{"a":{"b":1},"x":2}`, `{"a":{},"c":{"d":1},"y":2}`, ""},
		"rename taken": {RenameTransform{renaming(t, "a", "b")}, `{"a":"s3cret","b":"s3cret"}`, "", "rename a to b: there is something at b already"},
		"set": {
			SetTransform{{path(t, "a.b"), program(t, `"eu"`)}, {path(t, "c[*].d"), program(t, `{"x": [1, null]}`)}},
			`{"c":[{},{}]}`, `{"a":{"b":"eu"},"c":[{"d":{"x":[1,null]}},{"d":{"x":[1,null]}}]}`, "",
		},
		"set, before the first is set": {SetTransform{{path(t, "a"), program(t, "object.b")}, {path(t, "b"), program(t, "object.a")}}, `{"a":1,"b":2}`, `{"a":2,"b":1}`, ""},
		"set a part of itself":         {SetTransform{{path(t, "a.copy"), program(t, "object.a")}}, `{"a":{"b":1}}`, `{"a":{"b":1,"copy":{"b":1}}}`, ""},
		"set an expression": {
			SetTransform{{path(t, "metadata.labels.at"), program(t, `object.spec.node + "/" + type`)}},
			`{"metadata":{},"spec":{"node":"n1"}}`, `{"metadata":{"labels":{"at":"n1/MODIFIED"}},"spec":{"node":"n1"}}`, "",
		},
		"set an expression that fails": {SetTransform{{path(t, "a"), program(t, "object.b.c")}}, `{"b":"s3cret"}`, "", `set a: expression, at 1:9: there is no field "c"; check with has(object.b.c) first`},
		"set through a string":         {SetTransform{{path(t, "a.b"), program(t, `"s3cret"`)}}, `{"a":"s3cret"}`, "", "set a.b: a is a string, not a map"},
	} {
		t.Run(name, func(t *testing.T) {
			var object map[string]any
			if err := apijson.Unmarshal([]byte(test.object), &object); err != nil {
				t.Fatal(err)
			}
			err := test.transform.Apply(t.Context(), object, fixedInput{object: object})
			if test.err != "" {
				if err == nil || err.Error() != test.err || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("got error %v, want %s", err, test.err)
				}
				return
			}
			got, encodeErr := json.Marshal(object)
			if err != nil || encodeErr != nil || !sameJSON(t, got, []byte(test.want)) {
				t.Errorf("got %s, %v, %v, want %s", got, err, encodeErr, test.want)
			}
		})
	}
}

// TestRedactModel: every match becomes a digest, which is another one for another value or in another place, and what is
// not matched stays. Redacting twice is redacting once.
func TestRedactModel(t *testing.T) {
	redactor := NewRedactor([]byte("0123456789abcdef"), "c")
	scalars := rapid.SampledFrom([]any{"s3cret", "other", int64(1), int64(2), true, nil, []any{"s3cret"}, map[string]any{"s3cret": "x"}})
	redact := RedactTransform{redactor, []fieldpath.Path{path(t, "list[*].value"), path(t, "one")}}
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(scalars, 2, 6).Draw(t, "values")
		list := []any{}
		for _, value := range values {
			list = append(list, map[string]any{"name": "n", "value": runtime.DeepCopyJSONValue(value)})
		}
		object := map[string]any{"list": list, "one": runtime.DeepCopyJSONValue(values[0]), "kept": "k"}
		if err := redact.Apply(context.Background(), object, fixedInput{}); err != nil {
			t.Fatal(err)
		}
		places := map[string]int{}
		for i := range values {
			item := object["list"].([]any)[i].(map[string]any)
			text, ok := item["value"].(string)
			if !ok || !isDigest(text) || item["name"] != "n" || strings.Contains(text, "s3cret") {
				t.Fatalf("item %d became %v", i, item)
			}
			places[text]++
		}
		one, _ := object["one"].(string)
		places[one]++
		if !isDigest(one) || object["kept"] != "k" || len(places) != len(values)+1 {
			t.Fatalf("got %v", object)
		}
		other := rapid.SampledFrom([]any{"else", "1", int64(3), false, []any{}}).Draw(t, "other")
		changed := map[string]any{"one": other}
		if err := redact.Apply(context.Background(), changed, fixedInput{}); err != nil || changed["one"] == one {
			t.Fatalf("%v and %v have the digest %s, %v", values[0], other, one, err)
		}
		once := runtime.DeepCopyJSONValue(object)
		if err := redact.Apply(context.Background(), object, fixedInput{}); err != nil || !reflect.DeepEqual(object, once) {
			t.Fatalf("a second time: %v, %v, want %v", object, err, once)
		}
	})
}

// TestTransformsLeaveTheRestAlone: whatever transforms do to their copy, nothing of what they were given changes.
func TestTransformsLeaveTheRestAlone(t *testing.T) {
	names := []string{"a", "b.c", "b", "d[*].e", "d[0]", "f", "d"}
	fromOld := []*expr.Program{program(t, "oldObject.a"), program(t, "oldObject.b"), program(t, "oldObject.d")}
	rapid.Check(t, func(t *rapid.T) {
		draw := func() fieldpath.Path {
			p, err := fieldpath.Parse(rapid.SampledFrom(names).Draw(t, "path"))
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		var list []Transform
		for range rapid.IntRange(1, 5).Draw(t, "transforms") {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				list = append(list, RemoveTransform{draw()})
			case 1:
				list = append(list, KeepTransform{draw(), draw(), draw()})
			case 2:
				list = append(list, RedactTransform{NewRedactor([]byte("k"), "c"), []fieldpath.Path{draw()}})
			case 3:
				list = append(list, SetTransform{{draw(), rapid.SampledFrom(fromOld).Draw(t, "value")}})
			case 4:
				if move, err := fieldpath.NewMove(draw(), draw()); err == nil {
					list = append(list, RenameTransform{move})
				}
			}
		}
		original := func() map[string]any {
			return map[string]any{
				"a": "x", "b": map[string]any{"c": []any{int64(1), map[string]any{}}},
				"d": []any{map[string]any{"e": map[string]any{"g": "y"}}, map[string]any{"e": nil}},
			}
		}
		object, old := original(), original()
		for _, transform := range list {
			_ = transform.Apply(context.Background(), object, fixedInput{object, old}) // a failed one too changes its copy only
		}
		if !reflect.DeepEqual(old, original()) {
			t.Fatalf("%v changed the previous version to %v", list, old)
		}
	})
}

// TestTransformsOfBothVersions: each version is transformed by itself. For the previous version there is none before.
func TestTransformsOfBothVersions(t *testing.T) {
	set := SetTransform{
		{path(t, "own"), program(t, "object.word")},
		{path(t, "before"), program(t, "oldObject.?word.orValue(null)")},
		{path(t, "type"), program(t, `type + " " + resource.resource`)},
	}
	p := start(t, func(o *Options) {
		o.Diff, o.Format, o.Transforms = DiffOldObject, FormatJSON, []Transform{set, RemoveTransform{path(t, "word")}}
	})
	p.take(t, &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 7, `"word":"new"`), Old: version(t, 6, `"word":"old"`)}, true)
	var record struct{ Object, OldObject map[string]any }
	if err := json.Unmarshal(p.sent[0].Body, &record); err != nil {
		t.Fatal(err)
	}
	if got := record.Object; got["own"] != "new" || got["before"] != "old" || got["type"] != "MODIFIED pods" || got["word"] != nil {
		t.Errorf("object: got %v", got)
	}
	if got := record.OldObject; got["own"] != "old" || got["before"] != nil || got["type"] != "MODIFIED pods" || got["word"] != nil {
		t.Errorf("version before: got %v", got)
	}
}

// A pipeline that reads the previous version reports it, or it would not be retained.
func TestNeedsOld(t *testing.T) {
	value, constant := program(t, "oldObject.a"), program(t, "1")
	for name, test := range map[string]struct {
		options Options
		want    bool
	}{
		"nothing": {Options{Transforms: []Transform{RemoveTransform{}, SetTransform{{path(t, "a"), constant}}}}, false},
		"set":     {Options{Transforms: []Transform{RemoveTransform{}, SetTransform{{path(t, "a"), constant}, {path(t, "b"), value}}}}, true},
		"changed": {Options{Filters: []Filter{TypesFilter{}, ChangedFilter{path(t, "a")}}}, true},
		"other":   {Options{Filters: []Filter{TypesFilter{}}}, false},
		"diff":    {Options{Diff: DiffMergePatch}, true},
		"no diff": {Options{Diff: DiffNone}, false},
	} {
		if got := test.options.needsOld(); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestChangedFilter(t *testing.T) {
	p := start(t, func(o *Options) {
		o.Filters = []Filter{ChangedFilter{path(t, "spec"), path(t, "metadata.labels")}}
	})
	before := version(t, 6, `"spec":{"x":1},"status":1`)
	for name, test := range map[string]struct {
		delta    delta.Delta
		filtered bool
	}{
		"status":     {delta.Delta{Type: delta.Modified, Object: version(t, 7, `"status":2,"spec":{"x":1}`), Old: before}, true},
		"spec":       {delta.Delta{Type: delta.Modified, Object: version(t, 7, `"spec":{"x":2}`), Old: before}, false},
		"not known":  {delta.Delta{Type: delta.Modified, Object: version(t, 7, `"spec":{"x":1}`)}, false},
		"added":      {delta.Delta{Type: delta.Added, Object: version(t, 7, `"spec":{"x":1}`)}, false},
		"deleted":    {delta.Delta{Type: delta.Deleted, Object: version(t, 7, `"spec":{"x":1}`), Old: before}, false},
		"odd number": {delta.Delta{Type: delta.Modified, Object: version(t, 7, `"spec":{"x":1e999}`), Old: before}, false},
	} {
		test.delta.Resource = pods
		passes, filtered := p.take(t, &test.delta, true)
		if filtered != test.filtered || !passes {
			t.Errorf("%s: got kept back %v, passes %v; want %v, true: the object itself stays of interest", name, filtered, passes, test.filtered)
		}
	}
}
