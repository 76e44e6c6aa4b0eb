package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/sinks"
)

// decoder fills structs from a tree. What cannot be decoded is reported and keeps its default.
type decoder struct {
	faults, warnings *faultList
	kinds            []sinks.Kind
	getenv           func(string) (string, bool)
	allowUnset       bool
	// places holds the values in the file by their paths.
	places map[string]*node
}

// at is the value at path, or the nearest section around it.
func (d *decoder) at(path string) *node {
	for {
		if n, ok := d.places[path]; ok || path == "" {
			return n
		}
		path = parent(path)
	}
}

// value decodes n into v, the value of a key.
func (d *decoder) value(n *node, path string, v reflect.Value, key field) {
	d.places[path] = n
	if v.Type() == reflect.TypeFor[Sink]() {
		d.sink(n, path, v.Addr().Interface().(*Sink))
		return
	}
	if s, ok := scalarOf(v.Type()); ok {
		d.scalar(n, path, v, s, key)
		return
	}
	nothing := v.Kind() == reflect.Slice && v.Len() == 0 && n.kind != yaml.ScalarNode && len(n.items)+len(n.entries) == 0
	if nothing || n.isNull() && (v.Kind() != reflect.Struct || v.Type() == reflect.TypeFor[delta.Namespaces]() || v.Type() == reflect.TypeFor[SourceNamespaces]()) {
		// A list of nothing means something only where it replaces a default. Taken as no key at all, an empty tls: would mean plaintext. A namespaces: or sources: of which every line is commented out
		// would select everything.
		advice := "fill it in"
		if !key.required {
			advice += ", or remove the key"
		}
		if v.Kind() == reflect.Pointer && !needsKeys(v.Type().Elem()) {
			advice = fmt.Sprintf("write %s: {} to use it with its defaults, or remove the key", strings.TrimPrefix(lastStep(path), "."))
		}
		d.faults.addBroken(n, path, "is empty: %s", advice)
		return
	}
	if into, ok := v.Addr().Interface().(entryDecoder); ok {
		if d.is(n, path, yaml.MappingNode) {
			for _, e := range n.entries {
				into.entry(d, e, join(path, e.key))
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			fresh := newValue(v.Type().Elem())
			d.value(n, path, fresh, key)
			v.Set(fresh.Addr())
			return
		}
		d.value(n, path, v.Elem(), key)
	case reflect.Struct:
		// A null that comes here is a section without keys.
		if n.isNull() || d.is(n, path, yaml.MappingNode) {
			d.structure(n, path, v)
		}
	case reflect.Slice:
		if d.is(n, path, yaml.SequenceNode) {
			d.list(n, path, v, key)
		}
	case reflect.Map:
		if d.is(n, path, yaml.MappingNode) {
			d.mapping(n, path, v)
		}
	default:
		d.faults.addBroken(n, path, "kubeferry has no way to read this key (%s)", v.Type())
	}
}

// needsKeys reports whether a section without keys is a fault.
func needsKeys(section reflect.Type) bool {
	return section == reflect.TypeFor[delta.Namespaces]() || slices.ContainsFunc(fieldsOf(section), func(f field) bool { return f.required })
}

// is reports whether n is a list, or a mapping, as it must be.
func (d *decoder) is(n *node, path string, kind yaml.Kind) bool {
	if n.kind != kind {
		d.faults.addBroken(n, path, "must be %s, not %s", nodeNoun(&node{kind: kind}), nodeNoun(n))
	}
	return n.kind == kind
}

func (d *decoder) structure(n *node, path string, v reflect.Value) {
	keys := fieldsOf(v.Type())
	present := d.keys(n, path, fieldNames(keys))
	for _, key := range keys {
		if value, ok := present[key.name]; ok {
			d.value(value, join(path, key.name), v.FieldByIndex(key.index), key)
		} else if key.required {
			d.missing(n, join(path, key.name))
		}
	}
}

// missing reports that a section lacks a key, unless another key was taken for it.
func (d *decoder) missing(section *node, path string) {
	if !d.faults.isBroken(path) {
		d.faults.addBroken(section, path, "is required")
	}
}

// keys returns the entries of a mapping that are among names, and reports the others.
func (d *decoder) keys(n *node, path string, names []string) map[string]*node {
	present := map[string]*node{}
	for _, e := range n.entries {
		if slices.Contains(names, e.key) {
			present[e.key] = e.value
		}
	}
	for _, e := range n.entries {
		if _, ok := present[e.key]; ok {
			continue
		}
		hint := "; there are: " + strings.Join(names, ", ")
		if meant := expr.Nearest(e.key, names); meant != "" {
			hint = fmt.Sprintf("; did you mean %q?", meant)
			if present[meant] == nil { // that the key is missing is no fault of its own
				d.faults.setBroken(join(path, meant))
			}
		}
		d.faults.add(e.line, e.column, join(path, e.key), "unknown key"+hint)
	}
	return present
}

func (d *decoder) list(n *node, path string, v reflect.Value, key field) {
	list := reflect.MakeSlice(v.Type(), 0, len(n.items))
	for i, item := range n.items {
		element := newValue(v.Type().Elem())
		d.value(item, index(path, i), element, key)
		list = reflect.Append(list, element) // a faulty one too: indices are paths
	}
	v.Set(list)
}

func (d *decoder) mapping(n *node, path string, v reflect.Value) {
	m := reflect.MakeMapWithSize(v.Type(), len(n.entries))
	for _, e := range n.entries {
		element := newValue(v.Type().Elem())
		d.value(e.value, join(path, e.key), element, field{})
		m.SetMapIndex(reflect.ValueOf(e.key).Convert(v.Type().Key()), element)
	}
	v.Set(m)
}

// newValue returns an addressable value with its defaults.
func newValue(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if d, ok := v.Interface().(defaulter); ok {
		d.setDefaults()
	}
	return v.Elem()
}
