package config

import (
	"strconv"

	"gopkg.in/yaml.v3"
)

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
