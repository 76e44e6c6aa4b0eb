package pipeline

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// TestFilteredMetric: each change that is kept back counts for the first filter that keeps it back, once.
func TestFilteredMetric(t *testing.T) {
	for _, test := range []struct {
		name    string
		filters []shape.Filter
		onLeave shape.OnLeave
		types   []delta.Type
		removed bool // inferred
		want    map[string]float64
	}{
		{"no filter", nil, shape.OnLeaveIgnore, []delta.Type{delta.Added}, false, map[string]float64{"": 0}},
		{
			"the first",
			[]shape.Filter{shape.TypesFilter{delta.Added}, shape.NamespacesFilter{Include: []string{"other"}}},
			shape.OnLeaveIgnore,
			[]delta.Type{delta.Added, delta.Modified, delta.Modified},
			false,
			map[string]float64{"filters[0]": 2, "filters[1]": 1},
		},
		{
			"a type decides about what leaves",
			[]shape.Filter{shape.NamespacesFilter{Include: []string{"other"}}, shape.TypesFilter{delta.Modified}},
			shape.OnLeaveDeleted,
			[]delta.Type{delta.Modified},
			false,
			map[string]float64{"filters[0]": 0, "filters[1]": 1},
		},
		{
			"an inferred deletion",
			[]shape.Filter{shape.NamespacesFilter{Include: []string{"other"}}, shape.TypesFilter{delta.Added}},
			shape.OnLeaveIgnore,
			[]delta.Type{delta.Deleted},
			true,
			map[string]float64{"filters[0]": 0, "filters[1]": 1},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			p := New(Options{
				Options:  shape.Options{Name: "p", Filters: test.filters, OnLeave: test.onLeave, Format: shape.FormatJSON},
				MaxBytes: 1 << 20, Sink: &script{},
			}, NewMetrics(registry), slog.New(slog.DiscardHandler))
			for i, kind := range test.types {
				d := change(t, "web", i+1)
				d.Type, d.Inferred, d.FinalStateUnknown = kind, test.removed, test.removed
				ticket, err := p.Reserve(t.Context(), d, true)
				if err != nil {
					t.Fatal(err)
				}
				p.Take(ticket)
			}
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]float64{}
			for _, family := range families {
				for _, m := range family.GetMetric() {
					if family.GetName() != "kubeferry_deltas_filtered_total" {
						continue
					}
					filter := ""
					for _, label := range m.GetLabel() {
						if label.GetName() == "filter" {
							filter = label.GetValue()
						}
					}
					got[filter] += m.GetCounter().GetValue()
				}
			}
			if len(got) != len(test.want) {
				t.Fatalf("got %v, want %v", got, test.want)
			}
			for filter, want := range test.want {
				if got[filter] != want {
					t.Errorf("got %v, want %v", got, test.want)
				}
			}
		})
	}
}
