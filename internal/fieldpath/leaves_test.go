package fieldpath

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestLeaves(t *testing.T) {
	for name, test := range map[string]struct{ path, object, want string }{
		"leaf":         {"a.b", `{"a":{"b":1}}`, `a.b 1`},
		"inside":       {"a", `{"a":{"b":1,"c":{"d":2},"e":3},"f":4}`, `a.b 1, a.c.d 2, a.e 3`},
		"null":         {"a", `{"a":{"b":null}}`, `a.b <nil>`},
		"nothing":      {"a.b", `{"a":{}}`, ``},
		"empty":        {"a", `{"a":{"b":{},"c":[]}}`, `a.b map[], a.c []`},
		"items":        {"a[*].x", `{"a":[{"x":1},{"y":2},{"x":3}]}`, `a[0].x 1, a[2].x 3`},
		"list":         {"a", `{"a":[1,[2,3]]}`, `a[0] 1, a[1][0] 2, a[1][1] 3`},
		"every member": {"a[*]", `{"a":{"x":1,"y":2}}`, `a.x 1, a.y 2`},
		"quoted":       {`a["b/c"]`, `{"a":{"b/c":1}}`, `a["b/c"] 1`},
	} {
		t.Run(name, func(t *testing.T) {
			leaves := mustParse(t, test.path).Leaves(decode(t, test.object))
			var got []string
			for _, place := range slices.Sorted(maps.Keys(leaves)) {
				got = append(got, fmt.Sprintf("%s %v", place, leaves[place]))
			}
			if got := strings.Join(got, ", "); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// Leaves differ if and only if the filter finds a difference.
func TestLeavesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := objects().Draw(t, "before"), objects().Draw(t, "after")
		path := paths().Draw(t, "path")
		differ, err := NewSet(path).DifferJSON([]byte(text(before)), []byte(text(after)))
		if err != nil {
			t.Fatal(err)
		}
		if olds, news := path.Leaves(before), path.Leaves(after); maps.EqualFunc(olds, news, func(a, b any) bool { return reflect.DeepEqual(a, b) }) == differ {
			t.Errorf("%s in %v and %v: DifferJSON is %v, Leaves are %v and %v", path, before, after, differ, olds, news)
		}
	})
}
