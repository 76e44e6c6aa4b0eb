package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/kubeferry/kubeferry/internal/expr"
)

var (
	// A cluster's name is part of every id, subject and topic: a '/' would make ids ambiguous.
	clusterPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:-]{0,126}[A-Za-z0-9])?$`)
	namePattern    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
)

func (v *validator) cluster() {
	if v.present("cluster") && !clusterPattern.MatchString(v.config.Cluster) {
		v.fault("cluster", "must be 1 to 128 letters, digits or any of . _ : - and begin and end with a letter or digit; %s is not", v.shown("cluster"))
	}
}

// name is a name that the file gives to something.
type name struct {
	text string
	// shown is the name as the file has it, for messages; "" if it could not be read.
	shown string
}

// names checks the names in a list of size sources, pipelines or sinks.
func (v *validator) names(section string, size int) []name {
	names := make([]name, size)
	lines := map[string]int{}
	for i := range names {
		path := index(section, i) + ".name"
		if !v.present(path) || v.faults.isBroken(path) {
			continue
		}
		at := v.decode.at(path)
		names[i] = name{at.text, at.raw}
		if !namePattern.MatchString(at.text) {
			v.fault(path, "must be 1 to 63 letters, digits or any of . _ - and begin and end with a letter or digit; %s is not", v.shown(path))
		}
		if line, ok := lines[at.text]; ok {
			v.fault(path, "the name %s is taken already, in line %d", v.shown(path), line)
		} else {
			lines[at.text] = at.line
		}
	}
	return names
}

// refer checks that the value text at path is one of the names, and returns its place in the list or -1. section is
// where the names are given.
func (v *validator) refer(path, text, section string, names []name) int {
	var shown []string
	for i, n := range names {
		if n.shown != "" && n.text == text {
			return i
		}
		shown = append(shown, n.shown)
	}
	// Where a name is missing or a whole section could not be read, the reference may well be right.
	if len(names) == 0 || slices.Contains(shown, "") || slices.Contains(v.faults.broken, section) {
		return -1
	}
	hint := "; there are: " + strings.Join(shown, ", ")
	if near := expr.Nearest(v.text(path), shown); near != "" {
		hint = `; did you mean "` + near + `"?` + hint[1:]
	}
	v.fault(path, "no %s named %s%s", strings.TrimSuffix(section, "s"), v.shown(path), hint)
	return -1
}
