package config

import (
	"regexp"
	"slices"
	"strings"
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
	// shown is the name as the file has it, for messages.
	shown string
	path  string
}

// names checks the names in a list of sources, pipelines or sinks.
func (v *validator) names(section string, texts []string) []name {
	names := make([]name, len(texts))
	lines := map[string]int{}
	for i, text := range texts {
		path := index(section, i) + ".name"
		names[i] = name{text: text, path: path}
		if !v.present(path) || v.broken.isBroken(path) {
			continue
		}
		names[i].shown = v.decode.at(path).value.raw
		if !namePattern.MatchString(text) {
			v.fault(path, "must be 1 to 63 letters, digits or any of . _ - and begin and end with a letter or digit; %s is not", v.shown(path))
		}
		if line, ok := lines[text]; ok {
			v.fault(path, "the name %s is taken already, in line %d", v.shown(path), line)
		} else {
			lines[text] = v.decode.at(path).line
		}
	}
	return names
}

// refer checks that the value text at path is one of the names, and returns its place in the list or -1.
func (v *validator) refer(path, text, what, section string, names []name) int {
	if i := slices.IndexFunc(names, func(n name) bool { return n.text == text && n.shown != "" }); i >= 0 {
		return i
	}
	// Where a name is missing or a whole section could not be read, the reference may well be right.
	unknown := slices.ContainsFunc(names, func(n name) bool { return n.shown == "" })
	if unknown || len(names) == 0 || slices.Contains(v.broken.broken, section) || v.broken.isBroken(path) {
		return -1
	}
	shown := make([]string, len(names))
	for i, n := range names {
		shown[i] = n.shown
	}
	hint := "; there are: " + strings.Join(shown, ", ")
	if p, ok := v.decode.places[path]; ok && !p.value.expanded {
		if near := suggest(text, shown); near != "" {
			hint = `; did you mean "` + near + `"?` + hint[1:]
		}
	}
	v.fault(path, "no %s named %s%s", what, v.shown(path), hint)
	return -1
}

func nameTexts[T any](list []T, name func(*T) string) []string {
	texts := make([]string, len(list))
	for i := range list {
		texts[i] = name(&list[i])
	}
	return texts
}
