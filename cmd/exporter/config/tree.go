package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"

	"gopkg.in/yaml.v3"
)

// maxFileBytes is far above what anyone writes.
const maxFileBytes = 4 << 20

// node is a value in the file, with aliases and merge keys resolved. Unlike a yaml.Node it belongs to one place only.
type node struct {
	kind         yaml.Kind // ScalarNode, SequenceNode or MappingNode
	tag          string    // of a scalar, as YAML resolved it: !!str, !!int, !!null …
	text         string    // of a scalar, expanded
	raw          string    // of a scalar, as it is written in the file
	expanded     bool      // text was made from something outside the file
	secrets      []secret  // what came from outside
	missing      error     // why some of it is not known
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

// parseYAML reads the one document of a file, or returns nil if it has faults. A file without a document is a null.
func parseYAML(data []byte, faults *faultList) *node {
	if len(data) > maxFileBytes {
		faults.add(0, 0, "", "the file is larger than 4Mi")
		return nil
	}
	var document, second yaml.Node
	reader := yaml.NewDecoder(bytes.NewReader(data))
	err := reader.Decode(&document)
	if errors.Is(err, io.EOF) {
		return &node{kind: yaml.ScalarNode, tag: "!!null", line: 1, column: 1}
	}
	if err == nil {
		// Decoded into a value, yaml.v3 resolves aliases, and fails where they make a small file large or contain
		// themselves. It also finds duplicate keys.
		err = document.Decode(new(any))
	}
	if err != nil {
		messages := []string{err.Error()}
		var several *yaml.TypeError
		if errors.As(err, &several) {
			messages = several.Errors
		}
		for _, message := range messages {
			match := yamlMessage.FindStringSubmatch(message)
			line, _ := strconv.Atoi(match[1])
			faults.add(line, 0, "", "not valid YAML: "+match[2])
		}
		return nil
	}
	if err := reader.Decode(&second); !errors.Is(err, io.EOF) {
		faults.add(second.Line, 0, "", "a second document begins here; the configuration is one document")
		return nil
	}
	return newNode(document.Content[0])
}

// yamlMessage is a message of yaml.v3, most of which have a line.
var yamlMessage = regexp.MustCompile(`^(?:yaml: )*(?:line (\d+): )?(.*)`)

// newNode copies what yaml.v3 read and checked. Keys that are written out win over merged ones, and earlier merged ones
// over later.
func newNode(y *yaml.Node) *node {
	n := &node{kind: y.Kind, tag: y.ShortTag(), text: y.Value, raw: y.Value, line: y.Line, column: y.Column}
	switch y.Kind {
	case yaml.AliasNode:
		n = newNode(y.Alias)
		n.line, n.column = y.Line, y.Column
	case yaml.SequenceNode:
		for _, item := range y.Content {
			n.items = append(n.items, newNode(item))
		}
	case yaml.MappingNode:
		var merged []entry
		present := map[string]bool{}
		for i := 0; i+1 < len(y.Content); i += 2 {
			key, value := y.Content[i], newNode(y.Content[i+1])
			if key.Kind == yaml.AliasNode {
				key = key.Alias
			}
			if key.ShortTag() == "!!merge" {
				merged = append(merged, value.merged()...)
				continue
			}
			if value.kind != yaml.ScalarNode || value.isNull() {
				value.line, value.column = key.Line, key.Column // a fault in a section is reported at its key
			}
			present[key.Value] = true
			n.entries = append(n.entries, entry{key.Value, value, key.Line, key.Column})
		}
		for _, e := range merged {
			if !present[e.key] {
				present[e.key] = true
				n.entries = append(n.entries, e)
			}
		}
	}
	return n
}

// merged returns the entries of a mapping or of several, which is what a merge key has.
func (n *node) merged() []entry {
	entries := n.entries
	for _, item := range n.items {
		entries = append(entries, item.entries...)
	}
	return entries
}
