package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// jsonPatch returns a JSON Patch (RFC 6902) that makes object of old. Lists are compared index by index.
//
// Each operation repeats the whole pointer, so a patch can be many times as large as both versions: with a key of 50 KB
// over 10,000 changed items it takes 500 MB. A patch that would be larger than object is therefore one operation that
// replaces the whole document. It takes no more memory than that while it is made, and time linear in the two versions.
func jsonPatch(old, object []byte) ([]byte, error) {
	var from, to any
	if err := decodeExact(old, &from); err != nil {
		return nil, err
	}
	if err := decodeExact(object, &to); err != nil {
		return nil, err
	}
	w := &patchWriter{limit: len(object)}
	w.out.WriteByte('[')
	if err := w.compare(from, to); errors.Is(err, errPatchTooLarge) {
		return slices.Concat([]byte(`[{"value":`), object, []byte(`,"op":"replace","path":""}]`)), nil
	} else if err != nil {
		return nil, err
	}
	w.out.WriteByte(']')
	return w.out.Bytes(), nil
}

var errPatchTooLarge = errors.New("the patch is larger than the object")

// patchWriter writes the operations of one patch.
type patchWriter struct {
	out   bytes.Buffer
	limit int
	// path is the JSON Pointer (RFC 6901) of the values under comparison.
	path []byte
}

// at calls f with the pointer extended by one token.
func (w *patchWriter) at(token string, f func() error) error {
	length := len(w.path)
	w.path = append(append(w.path, '/'), token...)
	err := f()
	w.path = w.path[:length]
	return err
}

func (w *patchWriter) compare(from, to any) error {
	switch from := from.(type) {
	case map[string]any:
		if to, ok := to.(map[string]any); ok {
			return w.compareObjects(from, to)
		}
	case []any:
		if to, ok := to.([]any); ok {
			return w.compareLists(from, to)
		}
	default:
		if !isContainer(to) && from == to {
			return nil
		}
	}
	return w.operation("replace", to, true)
}

// isContainer reports whether a decoded value is an object or a list, which Go cannot compare with ==.
func isContainer(value any) bool {
	switch value.(type) {
	case map[string]any, []any:
		return true
	default:
		return false
	}
}

// escapePointer escapes a token as RFC 6901 requires.
var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

func (w *patchWriter) compareObjects(from, to map[string]any) error {
	names := slices.Collect(maps.Keys(from))
	for name := range to {
		if _, both := from[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		before, had := from[name]
		after, has := to[name]
		err := w.at(escapePointer.Replace(name), func() error {
			switch {
			case !has:
				return w.operation("remove", nil, false)
			case !had:
				return w.operation("add", after, true)
			default:
				return w.compare(before, after)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *patchWriter) compareLists(from, to []any) error {
	common := min(len(from), len(to))
	for range from[common:] { // each removal moves the next item to the same index
		err := w.at(strconv.Itoa(common), func() error { return w.operation("remove", nil, false) })
		if err != nil {
			return err
		}
	}
	for i := range common {
		err := w.at(strconv.Itoa(i), func() error { return w.compare(from[i], to[i]) })
		if err != nil {
			return err
		}
	}
	for _, item := range to[common:] {
		err := w.at("-", func() error { return w.operation("add", item, true) })
		if err != nil {
			return err
		}
	}
	return nil
}

// operation appends one operation for the pointer, and fails once the patch is over its limit.
func (w *patchWriter) operation(op string, value any, hasValue bool) error {
	if w.out.Len()+len(w.path) > w.limit {
		return errPatchTooLarge
	}
	if w.out.Len() > 1 {
		w.out.WriteByte(',')
	}
	w.out.WriteByte('{')
	if hasValue {
		encoded, err := json.Marshal(value)
		if err != nil {
			return err
		}
		w.out.WriteString(`"value":`)
		w.out.Write(encoded)
		w.out.WriteByte(',')
	}
	path, err := json.Marshal(string(w.path))
	if err != nil {
		return err
	}
	w.out.WriteString(`"op":"` + op + `","path":`)
	w.out.Write(path)
	w.out.WriteByte('}')
	if w.out.Len() > w.limit {
		return errPatchTooLarge
	}
	return nil
}
