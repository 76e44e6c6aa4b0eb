package fieldpath

import (
	"testing"

	apijson "k8s.io/apimachinery/pkg/util/json"
)

func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := apijson.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return object
}

func parseAll(t testing.TB, texts []string) []Path {
	t.Helper()
	var list []Path
	for _, text := range texts {
		list = append(list, mustParse(t, text))
	}
	return list
}

func TestRemoveAndKeep(t *testing.T) {
	for name, test := range map[string]struct {
		object     string
		paths      []string
		left, kept string
	}{
		"members":    {`{"a":{"b":1,"c":2},"d":3}`, []string{"a.b", "d"}, `{"a":{"c":2}}`, `{"a":{"b":1},"d":3}`},
		"items":      {`{"a":[0,1,2,3]}`, []string{"a[0]", "a[1]"}, `{"a":[2,3]}`, `{"a":[0,1]}`},
		"every":      {`{"a":[{"b":1,"c":2},{"c":3}]}`, []string{"a[*].b"}, `{"a":[{"c":2},{"c":3}]}`, `{"a":[{"b":1}]}`},
		"all items":  {`{"a":[0,1]}`, []string{"a[*]"}, `{"a":[]}`, `{"a":[0,1]}`},
		"map values": {`{"a":{"x":1,"y":2}}`, []string{"a[*]"}, `{"a":{}}`, `{"a":{"x":1,"y":2}}`},
		"lists in lists": {
			`{"a":[1,{"b":[2,3]},{"b":[4,5]}]}`,
			[]string{"a[0]", "a[1].b[0]", "a[2].b[1]"},
			`{"a":[{"b":[3]},{"b":[4]}]}`, `{"a":[1,{"b":[2]},{"b":[5]}]}`,
		},
		"nothing":     {`{"a":[1],"b":{}}`, []string{"a.x", "b[0]", "c", "a[1]"}, `{"a":[1],"b":{}}`, `{}`},
		"null":        {`{"a":null,"b":1}`, []string{"a"}, `{"b":1}`, `{"a":null}`},
		"empty match": {`{"a":{},"b":1}`, []string{"a"}, `{"b":1}`, `{"a":{}}`},
		"inside":      {`{"a":{"b":1,"c":2}}`, []string{"a.b", "a"}, `{}`, `{"a":{"b":1,"c":2}}`},
	} {
		t.Run(name, func(t *testing.T) {
			list := parseAll(t, test.paths)
			object := decode(t, test.object)
			Remove(object, list...)
			if got := text(object); got != test.left {
				t.Errorf("Remove: got %s, want %s", got, test.left)
			}
			object = decode(t, test.object)
			NewSet(list...).Keep(object)
			if got := text(object); got != test.kept {
				t.Errorf("Keep: got %s, want %s", got, test.kept)
			}
		})
	}
}

func TestSet(t *testing.T) {
	for name, test := range map[string]struct{ object, path, want, err string }{
		"new":             {`{}`, "a.b.c", `{"a":{"b":{"c":7}}}`, ""},
		"replaced":        {`{"a":{"b":[1]}}`, "a.b", `{"a":{"b":7}}`, ""},
		"null on way":     {`{"a":null}`, "a.b", `{"a":{"b":7}}`, ""},
		"item":            {`{"a":[1,2]}`, "a[1]", `{"a":[1,7]}`, ""},
		"no such item":    {`{"a":[1]}`, "a[1]", `{"a":[1]}`, ""},
		"no list":         {`{}`, "a.b[*].c", `{}`, ""},
		"every":           {`{"a":[{},{"b":1}]}`, "a[*].b", `{"a":[{"b":7},{"b":7}]}`, ""},
		"map values":      {`{"a":{"x":{},"y":null}}`, "a[*].b", `{"a":{"x":{"b":7},"y":{"b":7}}}`, ""},
		"string on way":   {`{"a":{"b":"secret"}}`, "a.b.c", "", "a.b is a string, not a map"},
		"name at list":    {`{"a":[1]}`, "a.b", "", "a is a list, not a map"},
		"index at map":    {`{"a":{}}`, "a[0]", "", "a is a map, not a list"},
		"every at number": {`{"a":[1]}`, "a[*][*]", "", "a[*] is a number, not a list or a map"},
	} {
		t.Run(name, func(t *testing.T) {
			object := decode(t, test.object)
			err := mustParse(t, test.path).Set(object, int64(7))
			switch {
			case test.err != "":
				if err == nil || err.Error() != test.err {
					t.Errorf("got error %v, want %s", err, test.err)
				}
			case err != nil || text(object) != test.want:
				t.Errorf("got %s, %v, want %s", text(object), err, test.want)
			}
		})
	}
}

func TestMove(t *testing.T) {
	const notNames = "up to the last [*] or index both must be the same, as in spec.containers[*].env: spec.containers[*].environment"
	for name, test := range map[string]struct{ object, from, to, want, err string }{
		"beside":        {`{"a":1}`, "a", "b", `{"b":1}`, ""},
		"into new maps": {`{"a":{"b":1}}`, "a.b", "c.d", `{"a":{},"c":{"d":1}}`, ""},
		"each item":     {`{"a":[{"b":1},{},{"b":2}]}`, "a[*].b", "a[*].c", `{"a":[{"c":1},{},{"c":2}]}`, ""},
		"nothing":       {`{"a":{}}`, "a.b", "c", `{"a":{}}`, ""},
		"taken":         {`{"a":1,"b":"secret"}`, "a", "b", "", "there is something at b already"},
		"taken by null": {`{"a":1,"b":null}`, "a", "b", "", "there is something at b already"},
		"in the way":    {`{"a":[{"b":1,"c":"secret"}]}`, "a[*].b", "a[*].c.d", "", "a[*].c is a string, not a map"},
		"same":          {`{}`, "a.b", "a.b", "", "both are the same place"},
		"inside":        {`{}`, "a", "a.b", "", "one is inside the other"},
		"around":        {`{}`, "a.b", "a", "", "one is inside the other"},
		"other items":   {`{}`, "a[*].b", "c[*].b", "", notNames},
		"an item":       {`{}`, "a[0]", "a[1]", "", notNames},
	} {
		t.Run(name, func(t *testing.T) {
			object := decode(t, test.object)
			move, err := NewMove(mustParse(t, test.from), mustParse(t, test.to))
			if err == nil {
				err = move.Apply(object)
			}
			switch {
			case test.err != "":
				if err == nil || err.Error() != test.err {
					t.Errorf("got error %v, want %s", err, test.err)
				}
			case err != nil || text(object) != test.want:
				t.Errorf("got %s, %v, want %s", text(object), err, test.want)
			}
		})
	}
}

func TestDiffer(t *testing.T) {
	for name, test := range map[string]struct {
		before, after string
		paths         []string
		want          bool
	}{
		"same":              {`{"a":1}`, `{"a":1,"b":2}`, []string{"a"}, false},
		"other value":       {`{"a":1}`, `{"a":2}`, []string{"a"}, true},
		"number":            {`{"a":[1,10]}`, `{"a":[1.0,1e1]}`, []string{"a"}, true}, // the API server writes each number in one way
		"null is a value":   {`{"a":null}`, `{}`, []string{"a"}, true},
		"null appears":      {`{}`, `{"a":null}`, []string{"a"}, true},
		"order of members":  {`{"a":{"x":1,"y":{"z":[]}}}`, `{"a":{"y":{"z":[]},"x":1}}`, []string{"a"}, false},
		"other member":      {`{"a":{"x":1}}`, `{"a":{"y":1}}`, []string{"a"}, true},
		"fewer members":     {`{"a":{"x":1,"y":1}}`, `{"a":{"x":1}}`, []string{"a"}, true},
		"order of items":    {`{"a":[1,2]}`, `{"a":[2,1]}`, []string{"a"}, true},
		"more items":        {`{"a":[1]}`, `{"a":[1,2]}`, []string{"a"}, true},
		"moved to an item":  {`{"a":[{"b":1},{}]}`, `{"a":[{},{"b":1}]}`, []string{"a[*].b"}, true},
		"item without it":   {`{"a":[{"b":1}]}`, `{"a":[{"b":1},{"c":2}]}`, []string{"a[*].b"}, false},
		"every, order":      {`{"a":{"x":{"b":1},"y":{"b":2}}}`, `{"a":{"y":{"b":2},"x":{"b":1}}}`, []string{"a[*].b"}, false},
		"every, other name": {`{"a":{"x":{"b":1}}}`, `{"a":{"y":{"b":1}}}`, []string{"a[*].b"}, true},
		"list became map":   {`{"a":[1]}`, `{"a":{"0":1}}`, []string{"a[*]"}, true},
		"one of several":    {`{"a":1,"b":{"c":1}}`, `{"a":1,"b":{"c":2}}`, []string{"a", "b.c"}, true},
		"escapes":           {`{"a\u002eb":"\u0041\n"}`, `{"a.b":"A\u000a"}`, []string{`["a.b"]`}, false},
		"other type":        {`{"a":"1"}`, `{"a":1}`, []string{"a"}, true},
		"words":             {`{"a":true}`, `{"a":false}`, []string{"a"}, true},
		"white space":       {"{ \"a\" :\n[ 1 , {} ]\t}", `{"a":[1,{}]}`, []string{"a"}, false},
		"no path":           {`{"a":1}`, `{"a":2}`, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			list := parseAll(t, test.paths)
			set := NewSet(list...)
			got, err := set.DifferJSON([]byte(test.before), []byte(test.after))
			if err != nil || got != test.want {
				t.Errorf("DifferJSON: got %v, %v, want %v", got, err, test.want)
			}
			checkDiffer(t, decode(t, test.before), decode(t, test.after), test.before, test.after, list)
		})
	}
}

func TestDifferJSONMalformed(t *testing.T) {
	set := NewSet(mustParse(t, "a.b"), mustParse(t, "c[*]"))
	for _, bad := range []string{``, `{`, `{"a"`, `{"a":`, `{"a":{"b":1`, `{"a":{"b":"x\`, `{"c":[1`, `{"c":[1 2]}`, `[]x`, `{"a":{"b":[{"`, `{"\u12":1}`} {
		if differ, err := set.DifferJSON([]byte(bad), []byte(`{"a":{"b":2}}`)); err == nil && !differ {
			t.Errorf("%s: got no difference and no error", bad)
		}
	}
}
