package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// sink decodes {name: x, <kind>: {...}}.
func (d *decoder) sink(n *node, path string, s *Sink) {
	if !d.is(n, path, yaml.MappingNode) {
		return
	}
	var names, found []string
	for _, kind := range d.kinds {
		names = append(names, kind.Name)
	}
	present := d.keys(n, path, append([]string{"name"}, names...))
	if name, ok := present["name"]; ok {
		d.value(name, join(path, "name"), reflect.ValueOf(&s.Name).Elem(), field{})
	} else {
		d.missing(n, join(path, "name"))
	}
	for _, kind := range d.kinds {
		if section, ok := present[kind.Name]; ok {
			found = append(found, kind.Name)
			s.Kind, s.Config = kind.Name, kind.New()
			d.value(section, join(path, kind.Name), reflect.ValueOf(s.Config).Elem(), field{})
		}
	}
	misspelled := slices.ContainsFunc(names, func(name string) bool { return present[name] == nil && d.faults.isBroken(join(path, name)) })
	switch {
	case len(found) > 1:
		d.faults.add(n.line, n.column, path, fmt.Sprintf("has %d kinds, %s; a sink has one: write one entry for each", len(found), strings.Join(found, " and ")))
	case len(found) == 0 && !misspelled:
		d.faults.add(n.line, n.column, path, "has no kind: give it one of "+strings.Join(names, ", "))
	}
}
