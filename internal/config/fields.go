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
	typ      reflect.Type
}

// fieldsOf lists the keys of a struct in their order, those of ",inline" structs in place.
func fieldsOf(t reflect.Type) []field {
	var list []field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "-":
			continue
		case strings.Contains(option, "inline"):
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				list = append(list, inner)
			}
			continue
		case name == "":
			name = strings.ToLower(f.Name)
		}
		key := field{name: name, doc: f.Tag.Get("doc"), required: f.Tag.Get("required") == "true", index: []int{i}, typ: f.Type}
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
