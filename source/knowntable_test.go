package source

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// The table is a map, however many objects it gets, and whatever is changed while it is read.
func TestKnownTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, want := newKnownTable(), map[string]string{}
		text := func(o *knownObject) string {
			return fmt.Sprint(o.version.UID(), o.version.ResourceVersion(), o.round, o.due, o.filtered, o.had, o.retained)
		}
		number := rapid.IntRange(0, rapid.SampledFrom([]int{3, 100, 1000}).Draw(t, "names"))
		name := rapid.Custom(func(t *rapid.T) string {
			n := number.Draw(t, "name")
			return fmt.Sprint(strings.Repeat("n", n%253), n)
		})
		object := rapid.Custom(func(t *rapid.T) knownObject {
			version := delta.PackedVersion([16]byte{byte(rapid.Int().Draw(t, "uid"))}, rapid.Uint64Min(1).Draw(t, "version"))
			if rapid.Bool().Draw(t, "text") {
				version = delta.NewVersion(types.UID(rapid.String().Draw(t, "uid")), rapid.StringMatching(`[a-z0-9]{0,300}`).Draw(t, "version"))
			}
			return knownObject{
				version: version, round: rapid.Uint32().Draw(t, "round"), retained: rapid.Bool().Draw(t, "retained"),
				views: views{due: PipelineSet(rapid.Uint64().Draw(t, "due")), filtered: PipelineSet(rapid.Uint64().Draw(t, "filtered")), had: PipelineSet(rapid.Uint64().Draw(t, "had"))},
			}
		})
		put := func(name string, o knownObject) {
			table.put(table.locate(name), name, &o)
			want[name] = text(&o)
		}
		check := func() {
			got := map[string]string{}
			for name, o := range table.all {
				got[name] = text(&o)
				if found, ok := table.find(name); !ok || text(&found) != got[name] {
					t.Fatalf("%s: %v", name, found)
				}
			}
			if !maps.Equal(got, want) || table.count != len(want) {
				t.Fatalf("%d objects: got %v, want %v", table.count, got, want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) { put(name.Draw(t, "name"), object.Draw(t, "object")) },
			"put many": func(t *rapid.T) {
				o := object.Draw(t, "object")
				for n := range number.Draw(t, "many") {
					put(fmt.Sprint("many-", n), o)
				}
			},
			"remove": func(t *rapid.T) {
				if n := name.Draw(t, "name"); len(want) > 0 {
					table.remove(n)
					delete(want, n)
				}
			},
			"change all": func(t *rapid.T) {
				keep, o := rapid.SliceOf(rapid.Bool()).Draw(t, "keep"), object.Draw(t, "object")
				seen := map[string]bool{}
				for name := range table.all {
					if seen[name] {
						t.Fatalf("%s came twice", name)
					}
					if seen[name] = true; len(seen) < len(keep) && keep[len(seen)] {
						put(name, o)
					} else {
						table.remove(name)
						delete(want, name)
					}
				}
			},
			"": func(*rapid.T) { check() },
		})
	})
}
