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
		key := field{name: name, doc: f.Tag.Get("doc"), required: f.Tag.Get("required") == "true", index: f.Index}
		if enum := f.Tag.Get("enum"); enum != "" {
			key.enum = strings.Split(enum, "|")
		}
		list = append(list, key)
	}
	return list
}

func fieldNames(list []field) []string {
	names := make([]string, len(list))
	for i, f := range list {
		names[i] = f.name
	}
	return names
}
