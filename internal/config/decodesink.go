package config

import (
	"fmt"
	"reflect"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/sinks"
)

// sink decodes {name: x, <kind>: {...}}.
func (d *decoder) sink(n *node, path string, s *Sink) {
	if n.kind != yaml.MappingNode {
		d.faults.addBroken(n, path, "must be a mapping with a name and the kind of sink, not %s", nodeNoun(n))
		return
	}
	names := kindNames(d.kinds)
	present := d.keys(n, path, append([]string{"name"}, names...))

	if name, ok := present["name"]; ok {
		d.value(name, join(path, "name"), reflect.ValueOf(&s.Name).Elem(), nil)
	} else if !d.faults.isBroken(join(path, "name")) {
		d.missing(path, join(path, "name"), "is required")
	}
	var found []string
	for _, kind := range d.kinds {
		section, ok := present[kind.Name]
		if !ok {
			continue
		}
		found = append(found, kind.Name)
		config := kind.New()
		d.value(section, join(path, kind.Name), reflect.ValueOf(config).Elem(), nil)
		if s.Config == nil {
			s.Kind, s.Config = kind.Name, config
		}
	}
	switch {
	case len(found) > 1:
		at := d.at(path)
		d.faults.add(at.line, at.column, path, fmt.Sprintf("has %d kinds, %s; a sink has one: write one entry for each", len(found), strings.Join(found, " and ")))
	case len(found) == 0 && !d.misnamed(path, names):
		at := d.at(path)
		d.faults.add(at.line, at.column, path, "has no kind: give it one of "+strings.Join(names, ", "))
	}
}

// misnamed reports whether an unknown key of the sink at path was taken for one of the names.
func (d *decoder) misnamed(path string, names []string) bool {
	for _, name := range names {
		if d.faults.isBroken(join(path, name)) {
			return true
		}
	}
	return false
}

func kindNames(kinds []sinks.Kind) []string {
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = kind.Name
	}
	return names
}
