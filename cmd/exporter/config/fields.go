package config

import (
	"reflect"
	"strings"
)

// field is a key of a section, as the tags of its struct describe it.
type field struct {
	name     string
	doc      string
	enum     []string
	min, max string // as in the file; empty for none
	required bool
	index    []int
}

// fieldsOf lists the keys of a struct in their order, those of ",inline" structs in place.
func fieldsOf(t reflect.Type) []field {
	var list []field
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" || f.Anonymous || !f.IsExported() {
			continue
		}
		key := field{
			name: name, doc: f.Tag.Get("doc"), min: f.Tag.Get("min"), max: f.Tag.Get("max"), required: f.Tag.Get("required") == "true", index: f.Index,
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			key.enum = strings.Split(enum, "|")
		}
		list = append(list, key)
	}
	return list
}

// takes reports whether a value that was parsed is within the bounds of the key.
func (f field) takes(value any, s scalar) bool {
	number := func(value any) float64 {
		if v := reflect.ValueOf(value); v.CanInt() {
			return float64(v.Int())
		}
		return reflect.ValueOf(value).Float()
	}
	bound := func(text string) float64 {
		parsed, _ := s.parse(text) // it stands in the source code
		return number(parsed)
	}
	return (f.min == "" || number(value) >= bound(f.min)) && (f.max == "" || number(value) <= bound(f.max))
}

func fieldNames(list []field) []string {
	names := make([]string, len(list))
	for i, f := range list {
		names[i] = f.name
	}
	return names
}
