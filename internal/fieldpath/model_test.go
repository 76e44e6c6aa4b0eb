package fieldpath

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"
	apijson "k8s.io/apimachinery/pkg/util/json"
	"pgregory.net/rapid"
)

// The model of all operations: an object as the list of its places, each with its path and its value.
type spot struct {
	path  Path
	value any
}

func spots(value any, at Path) []spot {
	var list []spot
	add := func(step Step, child any) {
		path := at.Join(Path{steps: []Step{step}})
		list = append(list, spot{path, child})
		list = append(list, spots(child, path)...)
	}
	switch value := value.(type) {
	case map[string]any:
		for name, child := range value {
			add(Step{Kind: Name, Name: name}, child)
		}
	case []any:
		for i, child := range value {
			add(Step{Kind: Index, Index: i}, child)
		}
	}
	return list
}

// covers reports whether p matches a place, or one around it.
func covers(p, at Path) bool {
	return p.Len() <= at.Len() && slices.EqualFunc(p.steps, at.Head(p.Len()).steps, func(a, b Step) bool { return a == b || a.Kind == Every })
}

// matches reports whether one of the paths means this very place.
func matches(paths []Path, at Path) bool {
	return slices.ContainsFunc(paths, func(p Path) bool { return p.Len() == at.Len() && covers(p, at) })
}

// rebuild copies what is below a place, but for the children that drop names.
func rebuild(value any, at Path, drop func(Path) bool) any {
	switch value := value.(type) {
	case map[string]any:
		members := map[string]any{}
		for name, child := range value {
			if path := at.Join(Of(name)); !drop(path) {
				members[name] = rebuild(child, path, drop)
			}
		}
		return members
	case []any:
		items := []any{}
		for i, child := range value {
			if path := at.Join(Path{steps: []Step{{Kind: Index, Index: i}}}); !drop(path) {
				items = append(items, rebuild(child, path, drop))
			}
		}
		return items
	default:
		return value
	}
}

// values and paths are drawn from few names, so that they meet often.
var names = rapid.SampledFrom([]string{"a", "b", "c.d"})

func objects() *rapid.Generator[map[string]any] {
	return rapid.Custom(func(t *rapid.T) map[string]any { return drawMap(t, 4) })
}

func drawMap(t *rapid.T, depth int) map[string]any {
	members := map[string]any{}
	for range rapid.IntRange(0, 3).Draw(t, "members") {
		members[names.Draw(t, "name")] = drawValue(t, depth-1)
	}
	return members
}

func drawValue(t *rapid.T, depth int) any {
	kinds := 7
	if depth <= 0 {
		kinds = 5
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return rapid.Int64Range(-2, 2).Draw(t, "int")
	case 3:
		return rapid.SampledFrom([]float64{-1.5, 0.5}).Draw(t, "float") // a whole one is decoded as an integer
	case 4:
		return rapid.SampledFrom([]string{"", "x", "y\n", "é"}).Draw(t, "string")
	case 5:
		items := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			items = append(items, drawValue(t, depth-1))
		}
		return items
	default:
		return drawMap(t, depth)
	}
}

func paths() *rapid.Generator[Path] {
	return rapid.Custom(func(t *rapid.T) Path {
		path := Of(names.Draw(t, "first"))
		for range rapid.IntRange(0, 3).Draw(t, "more") {
			step := Step{Kind: Kind(rapid.IntRange(0, 2).Draw(t, "kind"))}
			switch step.Kind {
			case Name:
				step.Name = names.Draw(t, "name")
			case Index:
				step.Index = rapid.IntRange(0, 2).Draw(t, "index")
			}
			path.steps = append(path.steps, step)
		}
		return path
	})
}

func clone(object map[string]any) map[string]any { return runtime.DeepCopyJSON(object) }

func text(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func TestVisitModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		object, path := objects().Draw(t, "object"), paths().Draw(t, "path")
		var got, want []string
		path.Visit(object, func(value any) { got = append(got, text(value)) })
		for _, s := range spots(object, Path{}) {
			if matches([]Path{path}, s.path) {
				want = append(want, text(s.value))
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || path.Exists(object) != (len(want) > 0) {
			t.Fatalf("%s in %s: got %q, want %q", path, text(object), got, want)
		}
	})
}

func TestRemoveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		object, list := objects().Draw(t, "object"), rapid.SliceOfN(paths(), 0, 4).Draw(t, "paths")
		want := rebuild(object, Path{}, func(at Path) bool { return matches(list, at) })
		got := clone(object)
		Remove(got, list...)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%v from %s: got %s, want %s", list, text(object), text(got), text(want))
		}
	})
}

func TestKeepModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		object, list := objects().Draw(t, "object"), rapid.SliceOfN(paths(), 0, 4).Draw(t, "paths")
		all := spots(object, Path{})
		want := rebuild(object, Path{}, func(at Path) bool {
			inside := slices.ContainsFunc(list, func(p Path) bool { return covers(p, at) })
			around := slices.ContainsFunc(all, func(s spot) bool { return matches(list, s.path) && covers(at, s.path) })
			return !inside && !around
		})
		got := clone(object)
		NewSet(list...).Keep(got)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%v of %s: got %s, want %s", list, text(object), text(got), text(want))
		}
	})
}

func TestReplaceModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		object, path := objects().Draw(t, "object"), paths().Draw(t, "path")
		got := clone(object)
		if err := path.Replace(got, func(Path, any) (any, error) { return "new", nil }); err != nil {
			t.Fatal(err)
		}
		checkPlaces(t, object, got, func(at Path) bool { return matches([]Path{path}, at) }, "new")
	})
}

// checkPlaces: every place of before is in after with its value, but for the changed ones, which have the new value.
func checkPlaces(t *rapid.T, before, after map[string]any, changed func(Path) bool, value any) {
	for _, s := range spots(before, Path{}) {
		inside := slices.ContainsFunc(heads(s.path), changed)
		above := false
		for _, other := range spots(before, Path{}) {
			above = above || covers(s.path, other.path) && changed(other.path)
		}
		want := s.value
		switch {
		case changed(s.path):
			want = value
		case inside || above:
			continue
		}
		var got any = struct{ absent bool }{true}
		s.path.Visit(after, func(v any) { got = v })
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: got %v, want %v; %s became %s", s.path, got, want, text(before), text(after))
		}
	}
}

// heads are the places around one.
func heads(path Path) []Path {
	var list []Path
	for n := 1; n < path.Len(); n++ {
		list = append(list, path.Head(n))
	}
	return list
}

func TestSetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		object, path := objects().Draw(t, "object"), paths().Draw(t, "path")
		value := map[string]any{"new": []any{int64(1)}}
		got := clone(object)
		err := path.Set(got, value)
		if err != nil {
			// It is in the way: a place on the path that exists and is of another kind than the next step needs.
			wrong := false
			for _, s := range spots(object, Path{}) {
				for n := 1; n < path.Len(); n++ {
					_, isMap := s.value.(map[string]any)
					_, isList := s.value.([]any)
					fits := isMap && path.At(n).Kind != Index || isList && path.At(n).Kind != Name || s.value == nil
					wrong = wrong || path.Head(n).Len() == s.path.Len() && covers(path.Head(n), s.path) && !fits
				}
			}
			if !wrong {
				t.Fatalf("%s in %s: %v", path, text(object), err)
			}
			return
		}
		if path.namesOnly() && !path.Exists(got) {
			t.Fatalf("%s is not set in %s", path, text(got))
		}
		path.Visit(got, func(v any) {
			if !reflect.DeepEqual(v, value) {
				t.Fatalf("%s: got %s, want %s", path, text(v), text(value))
			}
			v.(map[string]any)["new"] = "changed" // each place has a copy of its own
		})
		if text(value) != `{"new":[1]}` {
			t.Fatalf("the value itself is in the object")
		}
		for _, s := range spots(object, Path{}) {
			if n := min(path.Len(), s.path.Len()); covers(path.Head(n), s.path.Head(n)) {
				continue
			}
			s.path.Visit(got, func(v any) {
				if !reflect.DeepEqual(v, s.value) {
					t.Fatalf("%s changed %s: %s became %s", path, s.path, text(object), text(got))
				}
			})
		}
	})
}

func TestMoveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		object := objects().Draw(t, "object")
		var from, to Path
		var move Move
		err := errors.New("none drawn")
		for tries := 0; err != nil; tries++ { // most pairs are impossible
			if tries == 100 {
				t.Skip("none is possible")
			}
			from, to = paths().Draw(t, "from"), paths().Draw(t, "to")
			move, err = NewMove(from, to)
		}
		got := clone(object)
		if err := move.Apply(got); err != nil {
			if !from.Exists(object) {
				t.Fatalf("nothing to move, and %v", err)
			}
			return
		}
		if from.Exists(got) {
			t.Fatalf("%s is still there: %s became %s", from, text(object), text(got))
		}
		want := clone(object)
		for _, s := range spots(object, Path{}) {
			if matches([]Path{from}, s.path) {
				// The new place of this match has the same items on the way.
				place := s.path.Head(move.common).Join(to.Tail(move.common))
				Remove(want, s.path)
				if place.Exists(want) {
					t.Fatalf("%s was there, and moved anyway", place)
				}
				if err := place.Set(want, s.value); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s to %s in %s: got %s, want %s", from, to, text(object), text(got), text(want))
		}
	})
}

func TestDifferModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := objects().Draw(t, "before"), objects().Draw(t, "after")
		if rapid.Bool().Draw(t, "near") {
			after = clone(before)
			_ = paths().Draw(t, "change").Set(after, drawValue(t, 1))
		}
		checkDiffer(t, before, after, text(before), text(after), rapid.SliceOfN(paths(), 0, 3).Draw(t, "paths"))
	})
}

// checkDiffer compares DifferJSON with the model.
func checkDiffer(t interface {
	Fatalf(format string, args ...any)
}, before, after map[string]any, beforeText, afterText string, list []Path,
) {
	found := func(object map[string]any) map[string]any {
		places := map[string]any{}
		for _, s := range spots(object, Path{}) {
			if matches(list, s.path) {
				places[s.path.String()] = s.value
			}
		}
		return places
	}
	want := !reflect.DeepEqual(found(before), found(after))
	got, err := NewSet(list...).DifferJSON([]byte(beforeText), []byte(afterText))
	if err != nil || got != want {
		t.Fatalf("%v: JSON %s and %s: got %v, %v, want %v", list, beforeText, afterText, got, err, want)
	}
}

// FuzzDifferJSON holds the scan against the decoded objects.
func FuzzDifferJSON(f *testing.F) {
	for _, seed := range [][3]string{
		{`{"a":1}`, `{"a":1.0}`, "a"},
		{` { "a" : [ {"b":"\u0041"} , null ] } `, `{"a":[{"b":"A"},null]}`, "a[*].b a[1]"},
		{`{"a":{"x":1,"y":[]}}`, `{"a":{"y":[],"x":1e0}}`, "a"},
		{`{"a":{"x":1,"y":2}}`, `{"a":{"y":2,"x":1}}`, "a[*]"},
		{`{"a\"b":"\\","c":{}}`, `{"c":{},"a\"b":"\\\\"}`, `["a\"b"] c.d`},
		{`{"a":18446744073709551615}`, `{"a":18446744073709551616}`, "a"},
		{`{"a":-0}`, `{"a":0.0}`, "a"},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]), seed[2])
	}
	f.Fuzz(func(t *testing.T, before, after []byte, list string) {
		var set []Path
		for _, text := range strings.Fields(list) {
			path, err := Parse(text)
			if err != nil || len(set) == 4 {
				return
			}
			set = append(set, path)
		}
		var old, current map[string]any
		if !decodable(before, &old) || !decodable(after, &current) {
			_, _ = NewSet(set...).DifferJSON(before, after) // whatever it returns, it ends
			return
		}
		checkDiffer(t, old, current, string(before), string(after), set)
	})
}

// decodable reports whether data is an object whose meaning is defined: UTF-8, and no member twice.
func decodable(data []byte, object *map[string]any) bool {
	if !isText(data) || apijson.Unmarshal(data, object) != nil || *object == nil {
		return false
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	return !duplicates(decoder)
}

func isText(data []byte) bool { return utf8.Valid(data) }

func duplicates(decoder *json.Decoder) bool {
	token, _ := decoder.Token()
	open, ok := token.(json.Delim)
	if !ok {
		return false
	}
	seen, found := map[string]bool{}, false
	for decoder.More() {
		if open == '{' {
			key, _ := decoder.Token()
			name := fmt.Sprint(key)
			found = found || seen[name]
			seen[name] = true
		}
		found = duplicates(decoder) || found
	}
	_, _ = decoder.Token()
	return found
}
