package source

import (
	"testing"

	"github.com/kubeferry/kubeferry/internal/delta"
)

func TestViewsAfterSending(t *testing.T) {
	before := views{due: 0b100, filtered: 0b101, had: 0b100}
	for _, c := range []struct {
		name                   string
		to, passed, announcing PipelineSet
		filtered, had          PipelineSet
	}{
		{"all pass", 0b111, 0b111, 0, 0, 0},
		{"none passes", 0b111, 0, 0, 0b111, 0b110},
		{"none passes, and the one that had it says so", 0b111, 0, 0b111, 0b111, 0b100},
		{"one passes", 0b111, 0b010, 0, 0b101, 0b100},
		{"the others stay as they were", 0b010, 0, 0, 0b111, 0b110},
		{"to none", 0, 0, 0, 0b101, 0b100},
	} {
		if got, want := before.sent(c.to, c.passed, c.announcing), (views{due: 0b100, filtered: c.filtered, had: c.had}); got != want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, want)
		}
	}
}

func TestRestoredViews(t *testing.T) {
	object := delta.Known{Filtered: 0b010, Had: 0b010, Due: 0b001, Era: 5}
	running := map[string]PendingSnapshot{"a": {Begun: true}, "b": {Begun: true}, "c": {Begun: true}}
	for _, c := range []struct {
		name      string
		meta      Meta
		pipelines []string
		want      views
	}{
		{"the same pipelines", Meta{Pipelines: []string{"a", "b", "c"}, Snapshots: running}, []string{"a", "b", "c"}, views{filtered: 0b010, had: 0b010, due: 0b001}},
		{"one is new, one is gone", Meta{Pipelines: []string{"b", "c", "gone"}, Snapshots: running}, []string{"a", "b", "c"}, views{filtered: 0b101, had: 0b100, due: 0b010}},
		{"a snapshot began later", Meta{Pipelines: []string{"b", "a"}, Snapshots: map[string]PendingSnapshot{"a": {Begun: true, Era: 6}, "b": {Begun: true, Era: 5}}}, []string{"a", "b", "c"}, views{filtered: 0b101, had: 0b001, due: 0b011}},
		{"its snapshot is complete", Meta{Pipelines: []string{"a", "b"}}, []string{"a", "b"}, views{filtered: 0b010, had: 0b010}},
	} {
		if got := restoredViews(&object, &c.meta, c.pipelines); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}
