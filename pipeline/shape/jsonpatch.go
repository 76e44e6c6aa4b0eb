package shape

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// jsonPatch returns a JSON Patch (RFC 6902) that makes object of old. Lists are compared index by index.
//
// Each operation repeats the whole pointer, so a patch can be many times as large as both versions: with a key of 50 KB
// over 10,000 changed items it takes 500 MB. A patch that would be larger than object is therefore one operation that
// replaces the whole document. It takes no more memory than that while it is made, and time linear in the two versions.
// Versions of more than maxCompared objects are not compared either.
func jsonPatch(old, object []byte) ([]byte, error) {
	whole := func() []byte {
		return slices.Concat([]byte(`[{"value":`), object, []byte(`,"op":"replace","path":""}]`))
	}
	if haveMany(old, object) {
		return whole(), nil
	}
	from, to, err := decodeBoth[any](old, object)
	if err != nil {
		return nil, err
	}
	w := &patchWriter{limit: len(object), out: []byte{'['}}
	w.compare(from, to)
	if w.full {
		return whole(), nil
	}
	return append(w.out, ']'), nil
}

// patchWriter writes the operations of one patch.
type patchWriter struct {
	out   []byte
	limit int
	// full is set once the patch is over its limit.
	full bool
	// path is the JSON Pointer (RFC 6901) of the values under comparison.
	path []byte
}

// operation of a patch. A value may be null, so that there is none only where the pointer is nil.
type operation struct {
	Value *any   `json:"value,omitempty"`
	Op    string `json:"op"`
	Path  string `json:"path"`
}

func (w *patchWriter) add(op string, value *any) {
	if w.full = w.full || len(w.out)+len(w.path) > w.limit; w.full {
		return
	}
	if len(w.out) > 1 {
		w.out = append(w.out, ',')
	}
	encoded, _ := json.Marshal(operation{value, op, string(w.path)}) // of decoded JSON: it cannot fail
	w.out = append(w.out, encoded...)
	w.full = len(w.out) > w.limit
}

// at calls f with the pointer extended by one token.
func (w *patchWriter) at(token string, f func()) {
	length := len(w.path)
	w.path = append(append(w.path, '/'), token...)
	f()
	w.path = w.path[:length]
}

func (w *patchWriter) compare(from, to any) {
	if w.full {
		return
	}
	switch from := from.(type) {
	case map[string]any:
		if to, ok := to.(map[string]any); ok {
			w.compareObjects(from, to)
			return
		}
	case []any:
		if to, ok := to.([]any); ok {
			w.compareLists(from, to)
			return
		}
	}
	if !reflect.DeepEqual(from, to) {
		w.add("replace", &to)
	}
}

// escapePointer escapes a token as RFC 6901 requires.
var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

func (w *patchWriter) compareObjects(from, to map[string]any) {
	names := maps.Clone(from)
	maps.Copy(names, to)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		before, had := from[name]
		after, has := to[name]
		w.at(escapePointer.Replace(name), func() {
			switch {
			case !has:
				w.add("remove", nil)
			case !had:
				w.add("add", &after)
			default:
				w.compare(before, after)
			}
		})
	}
}

func (w *patchWriter) compareLists(from, to []any) {
	common := min(len(from), len(to))
	for range from[common:] { // each removal moves the next item to the same index
		w.at(strconv.Itoa(common), func() { w.add("remove", nil) })
	}
	for i := range common {
		w.at(strconv.Itoa(i), func() { w.compare(from[i], to[i]) })
	}
	for _, item := range to[common:] {
		w.at("-", func() { w.add("add", &item) })
	}
}
