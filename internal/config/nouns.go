package config

import (
	"reflect"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// typeNoun says in plain words what the file must hold for a value of type t.
func typeNoun(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return typeNoun(t.Elem())
	case t == durationType:
		return "a duration such as 5s or 100ms"
	case t == bytesType:
		return "a size such as 64Mi"
	case t == pathType:
		return "a path such as spec.template"
	case reflect.PointerTo(t).Implements(reflect.TypeFor[entryDecoder]()):
		return "a mapping of paths to " + reflect.New(t).Interface().(entryDecoder).valueNoun()
	case t == resourceType:
		return "a resource such as apps/v1/deployments"
	case t.Kind() == reflect.Slice:
		return "a list of " + plural(t.Elem())
	case t.Kind() == reflect.Map:
		return "a mapping of names to " + plural(t.Elem())
	case t.Kind() == reflect.Bool:
		return "true or false"
	case isNumber(t):
		return "a whole number"
	case isScalar(t):
		return "a string"
	}
	if t.Kind() == reflect.Struct {
		if keys := fieldNames(fieldsOf(t)); len(keys) <= 4 {
			return "a mapping with " + strings.Join(keys, ", ")
		}
	}
	return "a mapping"
}

func plural(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "lists"
	case reflect.Bool:
		return "true or false"
	}
	noun, _, _ := strings.Cut(typeNoun(t), " such as ")
	noun, _, _ = strings.Cut(noun, " with ")
	_, noun, _ = strings.Cut(noun, " ")
	return noun + "s"
}

// nodeNoun says in plain words what the file holds.
func nodeNoun(n *node) string {
	switch {
	case n.kind == yaml.SequenceNode:
		return "a list"
	case n.kind == yaml.MappingNode:
		return "a mapping"
	case n.expanded:
		return "a string"
	}
	switch n.tag {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return n.text
	case "!!timestamp":
		return "a date"
	case "!!null":
		return "empty"
	default:
		return "a string"
	}
}

// shown quotes a scalar as the file has it, so that nothing from outside the file gets into a message.
func shown(n *node) string {
	text := n.raw
	if len(text) > 80 {
		text = text[:80] + "…"
	}
	return strconv.Quote(text)
}
