package sinks

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Template is a topic or subject with placeholders such as {namespace}. The zero value expands to "".
type Template struct {
	parts []part
}

// part is literal text, followed by a placeholder if field is not nil.
type part struct {
	literal string
	name    string
	field   func(*Fields) string
}

var placeholders = map[string]func(*Fields) string{
	"cluster":   func(f *Fields) string { return f.Cluster },
	"group":     func(f *Fields) string { return f.Group },
	"version":   func(f *Fields) string { return f.Version },
	"resource":  func(f *Fields) string { return f.Resource },
	"kind":      func(f *Fields) string { return f.Kind },
	"namespace": func(f *Fields) string { return f.Namespace },
	"name":      func(f *Fields) string { return f.Name },
	"type":      func(f *Fields) string { return f.Type },
}

var placeholder = regexp.MustCompile(`\{([^{}]*)\}`)

// NewTemplate reads a template. What is no placeholder is literal text; see [Template.Check].
func NewTemplate(text string) Template {
	var t Template
	end := 0
	for _, at := range placeholder.FindAllStringSubmatchIndex(text, -1) {
		name := text[at[2]:at[3]]
		if field, ok := placeholders[name]; ok {
			t.parts = append(t.parts, part{literal: text[end:at[0]], name: name, field: field})
			end = at[1]
		}
	}
	if end < len(text) {
		t.parts = append(t.parts, part{literal: text[end:]})
	}
	return t
}

// Check returns an error if the template has an unknown placeholder, which lists those that there are, or an unclosed brace.
func (t Template) Check() error {
	for _, p := range t.parts {
		if unknown := placeholder.FindString(p.literal); unknown != "" {
			return fmt.Errorf("unknown placeholder %s; there are {%s}", unknown, strings.Join(slices.Sorted(maps.Keys(placeholders)), "} {"))
		}
		if strings.ContainsAny(p.literal, "{}") {
			return fmt.Errorf("%q has a brace without its counterpart", p.literal)
		}
	}
	return nil
}

// Uses reports whether the template holds the placeholder of that name.
func (t Template) Uses(name string) bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.name == name })
}

// Fixed reports whether the template holds no placeholder.
func (t Template) Fixed() bool {
	return !slices.ContainsFunc(t.parts, func(p part) bool { return p.field != nil })
}

// Expand fills the placeholders in. The core group becomes "core", and every other empty value "_". In a value, each byte that
// allowed refuses becomes '_'. Literal text stays as it is: check it once with [Template.Literal].
func (t Template) Expand(fields *Fields, allowed func(byte) bool) string {
	if len(t.parts) == 1 && t.parts[0].field == nil {
		return t.parts[0].literal
	}
	b := make([]byte, 0, 128)
	for _, p := range t.parts {
		b = append(b, p.literal...)
		if p.field == nil {
			continue
		}
		value := p.field(fields)
		switch {
		case value == "" && p.name == "group":
			value = "core"
		case value == "":
			value = "_"
		}
		for i := range len(value) {
			if allowed(value[i]) {
				b = append(b, value[i])
			} else {
				b = append(b, '_')
			}
		}
	}
	return string(b)
}

// Literal returns the text between the placeholders, for checks at load.
func (t Template) Literal() string {
	literal := ""
	for _, p := range t.parts {
		literal += p.literal
	}
	return literal
}
