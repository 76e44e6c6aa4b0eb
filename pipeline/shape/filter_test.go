package shape

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
)

func exprFilter(t testing.TB, text string, onError OnError) ExprFilter {
	t.Helper()
	program, err := expr.Compile(text, expr.Filter)
	if err != nil {
		t.Fatal(err)
	}
	return NewExprFilter(program, "", onError)
}

// count is the value of a counter.
func count(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

func TestExprFilter(t *testing.T) {
	const expensive = `[object.where].all(x, lists.range(2000).all(y, lists.range(2000).all(z, y + z >= 0)))`
	for _, c := range []struct {
		name, text string
		onError    OnError
		sent       string // where the change goes; empty for nowhere
		errors     float64
	}{
		{"true", `object.where == "in" && type == "MODIFIED" && resource.resource == "pods"`, OnErrorPass, "sink", 0},
		{"false", `object.where == "out"`, OnErrorPass, "", 0},
		{"version before", `oldObject.where == "out"`, OnErrorPass, "sink", 0},
		{"fails, pass", `object.spec.nope == 1`, OnErrorPass, "sink", 1},
		{"fails, default", `object.spec.nope == 1`, "", "sink", 1},
		{"fails, drop", `object.spec.nope == 1`, OnErrorDrop, "", 1},
		{"fails, dead letter", `object.spec.nope == 1`, OnErrorDeadLetter, "dead", 1},
		{"costs too much, pass", expensive, OnErrorPass, "dead", 1},
		{"costs too much, drop", expensive, OnErrorDrop, "dead", 1},
		{"costs too much, dead letter", expensive, OnErrorDeadLetter, "dead", 1},
		{"does not matter", `object.where == "in" || object.spec.nope == 1`, OnErrorDrop, "sink", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, func(o *Options) { o.Filters = []Filter{exprFilter(t, c.text, c.onError)} })
			p.take(t, &delta.Delta{
				Type: delta.Modified, Resource: pods, Object: version(t, 7, `"where":"in"`), Old: version(t, 6, `"where":"out"`),
			}, true)
			got := ""
			if len(p.sent) > 0 {
				got += "sink"
			}
			if len(p.dead) > 0 {
				got += "dead"
			}
			if failed := count(t, p.metrics.FilterErrors); got != c.sent || failed != c.errors {
				t.Errorf("went to %q with %v errors, want %q with %v", got, failed, c.sent, c.errors)
			}
		})
	}
}

// onError does not decide about a Secret that cannot be redacted.
func TestExprFilterOnSpoiled(t *testing.T) {
	p := start(t, func(o *Options) {
		o.Filters = []Filter{exprFilter(t, `object.type == "Opaque"`, OnErrorDrop)}
		o.Redactor = NewRedactor([]byte("key"), "c")
	})
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	p.take(t, &delta.Delta{Type: delta.Modified, Resource: secrets, Object: version(t, 7, `"data":{"k":1e999}`)}, true)
	if failed := count(t, p.metrics.FilterErrors); len(p.dead) != 1 || failed != 0 {
		t.Errorf("got the dead letters %v and the errors %v, want one and none", p.errs, failed)
	}
}

func TestExprFilterDecodesOnDemand(t *testing.T) {
	for text, decodes := range map[string]bool{
		`type == "MODIFIED" && resource.resource == "pods"`:         false,
		`object.metadata.namespace == "shop" && !snapshot`:          false,
		`object.kind == "Pod" && has(object.metadata.name)`:         false,
		`type == "ADDED" && object.spec.x == 1`:                     false,
		`has(object.metadata.labels)`:                               true,
		`object.metadata.namespace != "shop" || has(object.spec.x)`: true,
	} {
		c := &Change{shaper: new(Shaper), observed: &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 7, `"spec":{}`)}}
		if _, err := exprFilter(t, text, OnErrorPass).Pass(c); err != nil || c.object != nil != decodes {
			t.Errorf("%s: decoded: %v, %v; want %v", text, c.object != nil, err, decodes)
		}
	}
}

func TestExprFilterOfObject(t *testing.T) {
	for text, want := range map[string][2]bool{ // OfObject, NeedsOld
		`object.spec.x == 1`:               {true, false},
		`resource.resource == "pods"`:      {true, false},
		`object.x == 1 && type == "ADDED"`: {false, false},
		`!snapshot`:                        {false, false},
		`!inferred`:                        {false, false},
		`object.x != oldObject.x`:          {false, true},
	} {
		f := exprFilter(t, text, OnErrorPass)
		if got := [2]bool{f.OfObject(), f.NeedsOld()}; got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

// TestExprFilterTells: one warning for each place at which an expression fails, and no value in it.
func TestExprFilterTells(t *testing.T) {
	var out bytes.Buffer
	p := start(t, func(o *Options) {
		o.Filters = []Filter{exprFilter(t, `object.map[object.where] == 1`, OnErrorDeadLetter)}
	})
	p.logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for n := range 3 {
		p.take(t, &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 7+n, `"where":"planted","map":{}`)}, true)
	}
	if lines := strings.Count(out.String(), "filter fails"); lines != 1 || !strings.Contains(out.String(), "a value is absent") {
		t.Errorf("got %d warnings, want one:\n%s", lines, out.String())
	}
	if all := fmt.Sprint(out.String(), p.errs); strings.Contains(all, "planted") || len(p.errs) != 3 {
		t.Errorf("a value of the object is in a message, or letters are missing:\n%s", all)
	}
}

func TestExprFilterConcurrently(t *testing.T) {
	f := exprFilter(t, `object.where == "in" && object.metadata.name.matches("^a")`, OnErrorPass)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c := &Change{shaper: new(Shaper), observed: &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 7, `"where":"in"`)}}
			for range 100 {
				if pass, err := f.Pass(c); !pass || err != nil {
					t.Errorf("got %v, %v", pass, err)
				}
			}
		})
	}
	wg.Wait()
}
