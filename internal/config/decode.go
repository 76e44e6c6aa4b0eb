package config

import (
	"encoding"
	"reflect"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/sinks"
)

// decoder fills structs from a tree. What cannot be decoded is reported and keeps its default.
type decoder struct {
	faults *faultList
	kinds  []sinks.Kind
	// places holds where each path of the file is.
	places map[string]place
}

// place is where a value stands: its key's line and column if it is a section, else its own.
type place struct {
	line, column int
	value        *node
}

// at is the place of path, or of the nearest thing around it.
func (d *decoder) at(path string) place {
	for {
		if p, ok := d.places[path]; ok || path == "" {
			return p
		}
		path = parent(path)
	}
}

func (d *decoder) value(n *node, path string, v reflect.Value, enum []string) {
	if _, ok := d.places[path]; !ok {
		d.places[path] = place{n.line, n.column, n}
	}
	if n.failed {
		return
	}
	if v.Type() == reflect.TypeFor[Sink]() {
		d.sink(n, path, v.Addr().Interface().(*Sink))
		return
	}
	if isScalar(v.Type()) {
		d.scalar(n, path, v, enum)
		return
	}
	if into, ok := v.Addr().Interface().(entryDecoder); ok {
		if d.is(n, path, yaml.MappingNode, v.Type()) {
			d.entries(n, path, into)
		}
		return
	}
	if n.isNull() {
		// A null reads like a section without keys, and would be the same as no key at all: `tls:` would be plaintext.
		if v.Kind() == reflect.Pointer {
			key := strings.TrimPrefix(lastStep(path), ".")
			d.faults.addBroken(n, path, "is empty: write %s: {} to use it with its defaults, or remove the key", key)
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			fresh := newValue(v.Type().Elem())
			d.value(n, path, fresh, enum)
			v.Set(fresh.Addr())
			return
		}
		d.value(n, path, v.Elem(), enum)
	case reflect.Struct:
		if d.is(n, path, yaml.MappingNode, v.Type()) {
			d.structure(n, path, v)
		}
	case reflect.Slice:
		if d.is(n, path, yaml.SequenceNode, v.Type()) {
			d.list(n, path, v, enum)
		}
	case reflect.Map:
		if d.is(n, path, yaml.MappingNode, v.Type()) {
			d.mapping(n, path, v)
		}
	default:
		d.faults.addBroken(n, path, "kubeferry has no way to read this key (%s)", v.Type())
	}
}

func (d *decoder) is(n *node, path string, kind yaml.Kind, t reflect.Type) bool {
	if n.kind != kind {
		d.faults.addBroken(n, path, "must be %s, not %s", typeNoun(t), nodeNoun(n))
	}
	return n.kind == kind
}

func (d *decoder) structure(n *node, path string, v reflect.Value) {
	keys := fieldsOf(v.Type())
	present := d.keys(n, path, fieldNames(keys))
	for _, key := range keys {
		if value, ok := present[key.name]; ok {
			d.value(value, join(path, key.name), v.FieldByIndex(key.index), key.enum)
		} else if keyPath := join(path, key.name); key.required && !d.faults.isBroken(keyPath) {
			d.missing(path, keyPath, "is required")
		}
	}
}

// missing reports that the section lacks something, at the section's place.
func (d *decoder) missing(section, path, message string) {
	at := d.at(section)
	d.faults.add(at.line, at.column, path, message)
	d.faults.setBroken(path)
}

// keys returns the entries of a mapping that are among names, notes their places and reports the others.
func (d *decoder) keys(n *node, path string, names []string) map[string]*node {
	present := map[string]*node{}
	for _, e := range n.entries {
		if slices.Contains(names, e.key) {
			present[e.key] = e.value
			d.note(e, join(path, e.key))
		}
	}
	for _, e := range n.entries {
		if _, ok := present[e.key]; ok {
			continue
		}
		keyPath := join(path, e.key)
		d.faults.add(e.line, e.column, keyPath, "unknown key"+didYouMean(e.key, names))
		if meant := suggest(e.key, names); meant != "" && present[meant] == nil {
			// Its value stands under the wrong name; that it is missing goes without saying.
			d.faults.setBroken(join(path, meant))
		}
	}
	return present
}

func (d *decoder) note(e entry, path string) {
	p := place{e.value.line, e.value.column, e.value}
	if e.value.kind != yaml.ScalarNode || e.value.isNull() {
		p.line, p.column = e.line, e.column
	}
	d.places[path] = p
}

func (d *decoder) list(n *node, path string, v reflect.Value, enum []string) {
	list := reflect.MakeSlice(v.Type(), 0, len(n.items))
	for i, item := range n.items {
		element := newValue(v.Type().Elem())
		d.value(item, index(path, i), element, enum)
		list = reflect.Append(list, element) // a faulty one too: indices are paths
	}
	v.Set(list)
}

func (d *decoder) mapping(n *node, path string, v reflect.Value) {
	m := reflect.MakeMapWithSize(v.Type(), len(n.entries))
	for _, e := range n.entries {
		keyPath := join(path, e.key)
		d.note(e, keyPath)
		element := newValue(v.Type().Elem())
		d.value(e.value, keyPath, element, nil)
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

// isScalar reports whether a value of type t is written as a scalar.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	case reflect.Pointer: // *bool and the like: nil is "not said"
		return false
	default:
		return t == resourceType || reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	}
}
