package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/sinks/sinktest/line"
)

// TestAddedSink: with the line that docs/new-sink.md requires in sinks.go, the configuration takes the section on that page.
func TestAddedSink(t *testing.T) {
	page, err := os.ReadFile("../../docs/new-sink.md")
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile("(?s)```yaml\n(sinks:\n.*?line:.*?)```").FindStringSubmatch(string(page))
	if section == nil {
		t.Fatal("the page has no section of the configuration")
	}
	all := append(kinds(), line.Kind())
	file := "cluster: test\nsources: [{name: s, resources: [v1/pods]}]\npipelines: [{name: p, sink: lines}]\n" + section[1]
	if _, warnings, err := config.Parse([]byte(file), "config.yaml", config.Options{Kinds: all}); err != nil || len(warnings) > 0 {
		t.Errorf("got %v, %v", warnings, err)
	}
	if schema, err := config.Schema(all); err != nil || !strings.Contains(string(schema), "host:port of the server") {
		t.Errorf("got %s, %v", schema, err)
	}
}
