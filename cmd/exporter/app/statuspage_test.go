package app

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestStatusPage: docs/operations.md shows only members that /status has, and names all of them.
func TestStatusPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "### What is on `/status`\n")
	_, example, shown := strings.Cut(section, "```json\n")
	example, _, closed := strings.Cut(example, "```")
	if !found || !shown || !closed {
		t.Fatal("the page has no example of /status")
	}
	var s status
	decoder := json.NewDecoder(strings.NewReader(example))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		t.Fatal(err)
	}
	if s.Replica == nil || len(s.Watches) != 1 || len(s.Pipelines) != 1 || s.DeadLetters == nil {
		t.Fatalf("the example lacks a part: %+v", s)
	}
	var missing []string
	for _, part := range []any{s, *s.Replica, *s.DeadLetters, s.Watches[0], s.Pipelines[0]} {
		missing = append(missing, notNamed(reflect.TypeOf(part), section)...)
	}
	if len(missing) > 0 {
		t.Errorf("the page does not name %q", missing)
	}
}

// notNamed returns the JSON members of a type, and of what it embeds, that a text does not name.
func notNamed(of reflect.Type, text string) (missing []string) {
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			missing = append(missing, notNamed(field.Type, text)...)
		case name == "" || name == "-":
		case !strings.Contains(text, `"`+name+`"`) && !strings.Contains(text, "`"+name) && !strings.Contains(text, "."+name+"`"):
			missing = append(missing, name)
		}
	}
	return missing
}
