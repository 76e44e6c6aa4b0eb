package shape

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// limit passes count changes of each key in an interval.
func limit(t *testing.T, per string, count int, every time.Duration) LimitFilter {
	t.Helper()
	program, err := expr.Compile(per, expr.Value)
	if err != nil {
		t.Fatal(err)
	}
	return NewLimitFilter(program, count, every)
}

// TestLimit: the first changes of each key pass, until its interval is over.
func TestLimit(t *testing.T) {
	p := start(t, func(o *Options) { o.Filters = []Filter{limit(t, `object.metadata.name`, 2, time.Minute)} })
	began := time.Now()
	for n, step := range []struct {
		name   string
		after  time.Duration
		passes bool
	}{
		{"a", 0, true},
		{"a", time.Second, true},
		{"a", 2 * time.Second, false},
		{"b", 30 * time.Second, true},
		{"a", 59 * time.Second, false},
		{"a", 60 * time.Second, true},
		{"b", 61 * time.Second, true},
		{"b", 62 * time.Second, false},
		{"b", 91 * time.Second, true},
	} {
		d := change(t, step.name, n+1)
		d.Observed = began.Add(step.after)
		if !p.Passes(d) || !p.Explain(t.Context(), d, true, nil).Taken { // which use nothing up
			t.Errorf("step %d: the object does not pass", n)
		}
		passes, filtered := p.take(t, d, true)
		if again, filteredAgain := p.take(t, d, true); again != passes || filteredAgain != filtered {
			t.Errorf("step %d: it is decided otherwise when it is offered again", n)
		}
		if !passes || filtered == step.passes {
			t.Errorf("step %d: filtered %v, want %v", n, filtered, !step.passes)
		}
	}
}

// TestLimitBehindOtherFilters: what an earlier filter keeps back does not count, and a key that cannot be made limits nothing.
func TestLimitBehindOtherFilters(t *testing.T) {
	p := start(t, func(o *Options) {
		o.Filters = []Filter{TypesFilter{delta.Deleted}, limit(t, `object.metadata.namespace`, 1, time.Hour)}
	})
	p.take(t, change(t, "a", 1), true)
	gone := change(t, "a", 2)
	gone.Type = delta.Deleted
	if _, filtered := p.take(t, gone, true); filtered {
		t.Error("a change that did not pass counts")
	}
	p = start(t, func(o *Options) { o.Filters = []Filter{limit(t, `object.spec.missing`, 1, time.Hour)} })
	for n := range 3 {
		if _, filtered := p.take(t, change(t, "a", n), true); filtered {
			t.Error("a change without a key is filtered out")
		}
		if answer := p.Explain(t.Context(), change(t, "a", n), true, nil).Filters[0]; !answer.Passed || !strings.Contains(answer.Error, `no field "missing"`) {
			t.Errorf("explained as %+v", answer)
		}
	}
}

// TestLimitForgets: beyond the bound the oldest key is forgotten, however many changes of a key pass.
func TestLimitForgets(t *testing.T) {
	for _, count := range []int{1, 7} {
		passed := limit(t, `1`, count, time.Hour).passed
		now := time.Now()
		take := func(key, n int) bool {
			now = now.Add(time.Millisecond)
			return passed.take(sha256.Sum256(fmt.Append(nil, key)), fmt.Sprint(n), now, count, time.Hour)
		}
		keys := maxPassed/count + 1
		for n := range keys * count {
			if !take(n/count, n) {
				t.Fatalf("count %d: change %d does not pass", count, n)
			}
		}
		if take(keys-1, -1) || !take(0, -1) {
			t.Errorf("count %d: it is not the oldest key that is forgotten", count)
		}
		if passed.total > maxPassed || len(passed.intervals) != len(passed.order) || len(passed.order) > maxPassed/count+1 {
			t.Errorf("count %d: %d changes of %d keys are remembered, %d in order", count, passed.total, len(passed.intervals), len(passed.order))
		}
	}
}

// TestChangedAnything: the path without a step stands for all but what differs in each change.
func TestChangedAnything(t *testing.T) {
	p := start(t, func(o *Options) { o.Filters, o.KeepManagedFields = []Filter{ChangedFilter{fieldpath.Path{}}}, true })
	object := func(version int, metadata, rest string) *delta.Object {
		o, err := delta.NewObject(fmt.Appendf(nil, `{"kind":"Pod","metadata":{"name":"a","uid":"u","resourceVersion":"%d","generation":%d,"managedFields":[{"manager":"m%d"}]%s}%s}`,
			version, version, version, metadata, rest))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, test := range []struct {
		metadata, rest, oldMetadata, oldRest string
		differs                              bool
	}{
		{},
		{rest: `,"spec":{"a":[1,{"b":2}]},"status":{}`, oldRest: `,"status":{},"spec":{"a":[1,{"b":2}]}`},
		{rest: `,"spec":{"a":1}`, oldRest: `,"spec":{"a":2}`, differs: true},
		{rest: `,"status":{}`, differs: true},
		{oldRest: `,"data":null`, differs: true},
		{metadata: `,"labels":{"a":"b"}`, differs: true},
		{metadata: `,"labels":{"a":"b"}`, oldMetadata: `,"labels":{"a":"b"}`},
		{oldMetadata: `,"deletionTimestamp":"2026-11-21T00:12:03Z"`, differs: true},
	} {
		d := &delta.Delta{Type: delta.Modified, Resource: pods, Object: object(8, test.metadata, test.rest), Old: object(7, test.oldMetadata, test.oldRest), Observed: time.Now()}
		if _, filtered := p.take(t, d, true); filtered == test.differs {
			t.Errorf("%s → %s: filtered %v", d.Old.JSON(), d.Object.JSON(), filtered)
		}
		if answer := p.Explain(t.Context(), d, true, nil).Filters[0]; (len(answer.Reads) > 0) != test.differs || answer.Condition != "*" {
			t.Errorf("%s → %s: explained as %+v", d.Old.JSON(), d.Object.JSON(), answer)
		}
	}
	// Each difference is explained once, and paths beside it are compared too.
	p = start(t, func(o *Options) {
		o.Filters = []Filter{ChangedFilter{fieldpath.Path{}, fieldpath.Of("spec"), fieldpath.Of("metadata", "generation")}}
	})
	d := &delta.Delta{
		Type: delta.Modified, Resource: pods, Object: object(8, `,"labels":{"a":"b"}`, `,"spec":{"a":1}`),
		Old: object(7, "", `,"spec":{"a":2}`), Observed: time.Now(),
	}
	answer := p.Explain(t.Context(), d, true, nil).Filters[0]
	var places []string
	for _, read := range answer.Reads {
		places = append(places, read.Place)
	}
	if want := []string{"spec.a", "metadata.generation", "metadata.labels.a"}; !slices.Equal(places, want) || answer.Condition != "*, spec, metadata.generation" {
		t.Errorf("explained as %+v, want %q", answer, want)
	}
	d.Object, d.Old = object(8, "", ""), object(7, "", "")
	if _, filtered := p.take(t, d, true); filtered {
		t.Error("the generation differs, and the change is filtered")
	}
}
