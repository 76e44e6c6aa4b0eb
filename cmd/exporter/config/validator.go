package config

import (
	"cmp"
	"fmt"
	"slices"
)

// validator checks a decoded file. It reports nothing about values that could not be decoded.
type validator struct {
	config           *Config
	decode           *decoder
	faults, warnings *faultList

	sourceNames, sinkNames []name
}

func (v *validator) all() {
	v.cluster()
	v.program()
	v.sources()
	v.sinks()
	v.pipelines()
	v.replicas()
	v.warnUnused()
}

// fault reports a mistake at path, unless the value there was reported already.
func (v *validator) fault(path, format string, args ...any) { v.report(v.faults, path, format, args) }

func (v *validator) warn(path, format string, args ...any) { v.report(v.warnings, path, format, args) }

func (v *validator) report(list *faultList, path, format string, args []any) {
	if !v.faults.isBroken(path) {
		at := v.decode.at(path)
		list.add(at.line, at.column, path, fmt.Sprintf(format, args...))
	}
}

// has reports whether the key at path is there, with a value or without.
func (v *validator) has(path string) bool {
	_, ok := v.decode.places[path]
	return ok
}

// present reports whether the file has a value at path.
func (v *validator) present(path string) bool {
	n, ok := v.decode.places[path]
	return ok && !n.isNull()
}

// keys returns how many keys the mapping at path has.
func (v *validator) keys(path string) int { return len(v.decode.at(path).entries) }

// text returns the scalar at path as the file has it, or "" if it came from outside the file and must not be shown.
func (v *validator) text(path string) string {
	if n := v.decode.at(path); !n.expanded {
		return n.text
	}
	return ""
}

// shown quotes the value at path as the file has it.
func (v *validator) shown(path string) string { return shown(v.decode.at(path)) }

// detail is ": " and the message of a library about the value at path. The message may repeat the value, so detail is "" if the value came
// from outside the file.
func (v *validator) detail(path string, err error) string {
	if v.text(path) == "" {
		return ""
	}
	return ": " + err.Error()
}

// scrub puts references back where a sink's message repeats what its section got from outside the file.
func (v *validator) scrub(message, section string) string {
	var secrets []secret
	for path, n := range v.decode.places {
		if within(path, section) {
			secrets = append(secrets, n.secrets...)
		}
	}
	// Longest first, so that a secret that holds another one goes as a whole.
	slices.SortFunc(secrets, func(a, b secret) int {
		return cmp.Or(cmp.Compare(len(b.text), len(a.text)), cmp.Compare(a.reference, b.reference))
	})
	return scrub(message, secrets)
}
