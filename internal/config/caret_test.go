package config

import (
	"testing"
)

func TestPointAt(t *testing.T) {
	for name, test := range map[string]struct {
		text   string
		offset int
		want   string
	}{
		"inside":      {"spec..template", 5, "\n    spec..template\n         ^"},
		"first":       {"x", 0, "\n    x\n    ^"},
		"end":         {"spec.", 5, "\n    spec.\n         ^"},
		"beyond":      {"spec", 99, "\n    spec\n        ^"},
		"negative":    {"spec", -1, "\n    spec\n    ^"},
		"empty":       {"", 0, ""},
		"second line": {"a &&\n  b ==\nc", 9, "\n      b ==\n        ^"},
		"line break":  {"a &&\nb", 4, "\n    a &&\n        ^"},
		"letters":     {"größe!", 7, "\n    größe!\n         ^"},
		"tab":         {"a\tb", 2, "\n    a b\n      ^"},
		"control":     {"a\x1b[31mb", 2, "\n    a·[31mb\n      ^"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := pointAt(test.text, test.offset); got != test.want {
				t.Errorf("got %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestPointHidesExpansion: what came from outside the file is not shown.
func TestPointHidesExpansion(t *testing.T) {
	decode := &decoder{faults: &faultList{}, places: map[string]*node{"a": {text: secretValue, raw: "${SECRET}", expanded: true}}}
	if got := pointAt((&validator{decode: decode}).text("a"), 3); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}
