package config

import (
	"fmt"

	"gopkg.in/yaml.v3"
)

// Bounds of a file. They are far above what anyone writes, and keep a hostile file from taking memory or stack.
const (
	maxFileBytes = 4 << 20
	maxDepth     = 64
	maxNodes     = 50_000
)

// node is a value in the file, with aliases and merge keys resolved. Unlike a yaml.Node it belongs to one place only.
type node struct {
	kind         yaml.Kind // ScalarNode, SequenceNode or MappingNode
	tag          string    // of a scalar, as YAML resolved it: !!str, !!int, !!null …
	text         string    // of a scalar, expanded
	raw          string    // of a scalar, as it is written in the file
	expanded     bool      // text was made from something outside the file
	secrets      []secret  // what came from outside
	failed       bool      // a fault was reported; nothing more is to be said of it
	items        []*node   // of a sequence
	entries      []entry   // of a mapping
	line, column int
}

type entry struct {
	key          string
	value        *node
	line, column int
}

func (n *node) isNull() bool { return n.kind == yaml.ScalarNode && n.tag == "!!null" && !n.expanded }

// treeBuilder makes a node of a yaml.Node.
type treeBuilder struct {
	faults *faultList
	nodes  int
	open   map[*yaml.Node]bool // anchors that are being resolved, against cycles
}

func (b *treeBuilder) build(y *yaml.Node, path string, depth int) *node {
	n := &node{kind: y.Kind, line: y.Line, column: y.Column}
	b.nodes++
	switch {
	case b.nodes == maxNodes:
		return b.fail(n, "", "the file holds too many values, or its aliases make it so")
	case b.nodes > maxNodes:
		n.failed = true
		return n
	case depth > maxDepth:
		return b.fail(n, path, "nested too deeply")
	}
	switch y.Kind {
	case yaml.AliasNode:
		if b.open[y.Alias] {
			return b.fail(n, path, fmt.Sprintf("alias *%s contains itself", y.Value))
		}
		target := b.build(y.Alias, path, depth+1)
		target.line, target.column = y.Line, y.Column
		return target
	case yaml.ScalarNode:
		return b.scalar(n, y, path)
	case yaml.SequenceNode, yaml.MappingNode:
		if y.Tag != "" && y.ShortTag() != "!!seq" && y.ShortTag() != "!!map" {
			return b.fail(n, path, fmt.Sprintf("the tag %s has no meaning here", y.Tag))
		}
		if y.Anchor != "" {
			b.open[y] = true
			defer delete(b.open, y)
		}
		if y.Kind == yaml.MappingNode {
			b.mapping(n, y, path, depth)
			return n
		}
		for i, item := range y.Content {
			n.items = append(n.items, b.build(item, index(path, i), depth+1))
		}
		return n
	default:
		return b.fail(n, path, "not something a configuration holds")
	}
}

func (b *treeBuilder) scalar(n *node, y *yaml.Node, path string) *node {
	n.tag, n.text, n.raw = y.ShortTag(), y.Value, y.Value
	switch n.tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp":
		return n
	case "!!merge":
		n.tag = "!!str"
		return n
	default:
		return b.fail(n, path, fmt.Sprintf("the tag %s has no meaning here", y.Tag))
	}
}

// mapping fills n in. Keys that are written out win over merged ones, and earlier merged ones over later.
func (b *treeBuilder) mapping(n *node, y *yaml.Node, path string, depth int) {
	lines := map[string]int{}
	var merges []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		key, value := y.Content[i], y.Content[i+1]
		at := &node{line: key.Line, column: key.Column}
		if key.Kind != yaml.ScalarNode {
			b.faults.add(at, path, "a key must be plain text")
			continue
		}
		if key.ShortTag() == "!!merge" {
			merges = append(merges, value)
			continue
		}
		if line, ok := lines[key.Value]; ok {
			b.faults.add(at, join(path, key.Value), fmt.Sprintf("the key is there already, in line %d", line))
			continue
		}
		lines[key.Value] = key.Line
		n.entries = append(n.entries, entry{key.Value, b.build(value, join(path, key.Value), depth+1), key.Line, key.Column})
	}
	for _, merge := range merges {
		b.merge(n, merge, path, depth, lines)
	}
}

func (b *treeBuilder) merge(n *node, y *yaml.Node, path string, depth int, lines map[string]int) {
	merged := b.build(y, join(path, "<<"), depth+1)
	from := merged.items
	if merged.kind == yaml.MappingNode {
		from = []*node{merged}
	}
	if from == nil && !merged.failed {
		b.faults.add(merged, join(path, "<<"), "must be a mapping, or a list of mappings, to merge")
	}
	for _, m := range from {
		if m.kind != yaml.MappingNode && !m.failed {
			b.faults.add(m, join(path, "<<"), "must be a mapping, or a list of mappings, to merge")
		}
		for _, e := range m.entries {
			if _, ok := lines[e.key]; !ok {
				lines[e.key] = e.line
				n.entries = append(n.entries, e)
			}
		}
	}
}

func (b *treeBuilder) fail(n *node, path, message string) *node {
	n.failed = true
	b.faults.add(n, path, message)
	return n
}
