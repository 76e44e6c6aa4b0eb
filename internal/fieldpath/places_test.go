package fieldpath

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestDifferences(t *testing.T) {
	for name, test := range map[string]struct{ path, before, after, want string }{
		"leaf":         {"a.b", `{"a":{"b":1}}`, `{"a":{"b":2}}`, `a.b 1 2`},
		"inside":       {"a", `{"a":{"b":1,"c":{"d":1}}}`, `{"a":{"b":1,"c":{"d":2},"e":3}}`, `a.c.d 1 2, a.e - 3`},
		"gone":         {"a", `{"a":{"b":null}}`, `{"a":{}}`, `a.b <nil> -`},
		"items":        {"a[*].x", `{"a":[{"x":1},{"x":2},{"y":3}]}`, `{"a":[{"x":1},{"x":5},{"x":6}]}`, `a[1].x 2 5, a[2].x - 6`},
		"longer":       {"a", `{"a":[1]}`, `{"a":[1,2]}`, `a[1] - 2`},
		"other kind":   {"a", `{"a":[1]}`, `{"a":{"b":1}}`, `a [1] map[b:1]`},
		"every member": {"a[*]", `{"a":{"x":1,"y":1}}`, `{"a":{"y":2,"z":1}}`, `a.x 1 -, a.y 1 2, a.z - 1`},
		"elsewhere":    {"a", `{"a":1,"b":1}`, `{"a":1,"b":2}`, ``},
		"equal number": {"a", `{"a":1}`, `{"a":1.0}`, ``},
		"quoted":       {`a["b/c"]`, `{"a":{"b/c":1}}`, `{"a":{}}`, `a["b/c"] 1 -`},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, d := range mustParse(t, test.path).Differences(decode(t, test.before), decode(t, test.after)) {
				if got != "" {
					got += ", "
				}
				got += d.Path.String()
				for _, side := range []struct {
					there bool
					value any
				}{{d.WasThere, d.Old}, {d.IsThere, d.New}} {
					if side.there {
						got += fmt.Sprintf(" %v", side.value)
					} else {
						got += " -"
					}
				}
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// What is shown to differ does for the filter, and the other way round.
func TestDifferencesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := objects().Draw(t, "before"), objects().Draw(t, "after")
		path := paths().Draw(t, "path")
		differ, err := NewSet(path).DifferJSON([]byte(text(before)), []byte(text(after)))
		if err != nil {
			t.Fatal(err)
		}
		if list := path.Differences(before, after); (len(list) > 0) != differ {
			t.Errorf("%s in %v and %v: DifferJSON is %v, Differences are %v", path, before, after, differ, list)
		}
	})
}
