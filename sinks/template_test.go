package sinks_test

import (
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

var allPlaceholders = []string{"cluster", "group", "kind", "name", "namespace", "resource", "type", "version"}

// token refuses what a NATS token cannot hold.
func token(c byte) bool { return c > ' ' && c < 0x7f && !strings.ContainsRune(".*>", rune(c)) }

func TestTemplate(t *testing.T) {
	fields := &sinks.Fields{
		Cluster: "prod.eu", Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment",
		Namespace: "shop", Name: "a b*ü", Type: "ADDED",
	}
	core := &sinks.Fields{Cluster: "c", Version: "v1", Resource: "nodes", Name: "n1"}
	tests := []struct {
		text   string
		fields *sinks.Fields
		want   string
	}{
		{"", fields, ""},
		{"k8s.changes", fields, "k8s.changes"},
		{"{name}", fields, "a_b___"},
		{"k8s.{cluster}.{group}.{resource}", fields, "k8s.prod_eu.apps.deployments"},
		{"{group}.{namespace}.{name}", core, "core._.n1"},
		{"{kind}{type}", core, "__"},
		{"x{version}{version}*", fields, "xv1v1*"},
	}
	for _, test := range tests {
		template := sinks.NewTemplate(test.text)
		if err := template.Check(); err != nil {
			t.Errorf("%q: %v", test.text, err)
		} else if got := template.Expand(test.fields, token); got != test.want {
			t.Errorf("%q: got %q, want %q", test.text, got, test.want)
		}
	}
	if got := (sinks.Template{}).Expand(fields, token); got != "" {
		t.Errorf("the zero template: got %q", got)
	}
}

func TestTemplateErrors(t *testing.T) {
	for text, want := range map[string]string{
		"{nam}":     "unknown placeholder {nam}; there are {cluster}",
		"{}":        "unknown placeholder {}",
		"a{name":    "without its counterpart",
		"a}b":       "without its counterpart",
		"{name}}":   "without its counterpart",
		"{{name}}":  "without its counterpart",
		"{Name}":    "unknown placeholder {Name}",
		"{ name }":  "unknown placeholder { name }",
		"a{name}{":  "without its counterpart",
		"${cluster": "without its counterpart",
	} {
		if err := sinks.NewTemplate(text).Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q in it", text, err, want)
		}
	}
}

func TestTemplateParts(t *testing.T) {
	template := sinks.NewTemplate("k8s.{group}{name}.x")
	if got, want := template.Literal(), "k8s..x"; got != want {
		t.Errorf("got literal %q, want %q", got, want)
	}
	for _, name := range allPlaceholders {
		if got, want := template.Uses(name), name == "group" || name == "name"; got != want {
			t.Errorf("Uses(%q): got %t, want %t", name, got, want)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"", "k8s.{group}.{name}", "{", "}", "{{name}}", "{name}{", "a{namespace}b"} {
		f.Add(seed, "na me.x")
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		template := sinks.NewTemplate(text)
		if template.Check() != nil {
			return
		}
		fields := &sinks.Fields{
			Cluster: value, Group: value, Version: value, Resource: value, Kind: value,
			Namespace: value, Name: value, Type: value,
		}
		got := template.Expand(fields, token)
		// The model: each placeholder replaced in the text.
		safe := []byte(value)
		for i := range safe {
			if !token(safe[i]) {
				safe[i] = '_'
			}
		}
		var pairs []string
		for _, name := range allPlaceholders {
			filled := string(safe)
			if value == "" {
				filled = "_"
			}
			if value == "" && name == "group" {
				filled = "core"
			}
			pairs = append(pairs, "{"+name+"}", filled)
		}
		if want := strings.NewReplacer(pairs...).Replace(text); got != want {
			t.Errorf("%q with %q: got %q, want %q", text, value, got, want)
		}
	})
}
