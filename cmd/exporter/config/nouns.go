package config

import (
	"reflect"
	"strconv"

	"gopkg.in/yaml.v3"
)

// typeNoun describes what the file must hold for a value of type t.
func typeNoun(t reflect.Type) string {
	switch {
	case t == durationType:
		return "a duration such as 5s or 100ms"
	case t == bytesType:
		return "a size such as 64Mi"
	case t == pathType, t == reflect.TypeFor[ChangedPath]():
		return "a path such as spec.template"
	case t == resourceType:
		return "a resource such as apps/v1/deployments"
	case t.Kind() == reflect.Slice && !reflect.PointerTo(t).Implements(reflect.TypeFor[entryDecoder]()):
		return "a list"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Float64:
		return "a number"
	case isNumber(t):
		return "a whole number"
	case isScalar(t):
		return "a string"
	default:
		return "a mapping"
	}
}

// nodeNoun describes what the file holds.
func nodeNoun(n *node) string {
	switch {
	case n.expanded, n.tag == "!!str":
		return "a string"
	case n.tag == "!!int", n.tag == "!!float":
		return "a number"
	case n.tag == "!!bool":
		return n.text
	case n.tag == "!!null":
		return "empty"
	case n.kind == yaml.SequenceNode:
		return "a list"
	case n.kind == yaml.MappingNode:
		return "a mapping"
	default:
		return "a value with the tag " + n.tag
	}
}

// shown quotes a scalar as the file has it, so that nothing from outside the file gets into a message.
func shown(n *node) string {
	return strconv.Quote(n.raw)
}
