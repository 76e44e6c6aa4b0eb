package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParse: whatever the file is, Parse returns a complete configuration or faults with lines, and no secret.
func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	paths, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range append(paths, "../../../config.example.yaml") {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const value = "q8Zu3wXk"
		opts := Options{Kinds: fakeKinds(), Getenv: func(name string) (string, bool) { return value, name == "SECRET" }}
		config, warnings, err := Parse(data, "config.yaml", opts)
		lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + 2
		lines += strings.Count(string(data), "\u0085") + strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029")
		var faults Faults
		switch {
		case err == nil && (config == nil || config.Cluster == "" || len(config.Sources)*len(config.Pipelines)*len(config.Sinks) == 0):
			t.Fatalf("accepted an incomplete file: %+v", config)
		case err != nil && (!errors.As(err, &faults) || len(faults) == 0 || config != nil):
			t.Fatalf("got %v, %v, want faults only", config, err)
		}
		for _, fault := range append(faults, warnings...) {
			if fault.Line < 1 && fault.Path != "" || fault.Line > lines || fault.Message == "" || fault.File != "config.yaml" {
				t.Errorf("fault without a place or text: %+v", fault)
			}
			if strings.Contains(fault.Message, value) && !strings.Contains(string(data), value) {
				t.Errorf("a message holds what came from the environment: %s", fault)
			}
		}
		if config == nil {
			return
		}
		for _, p := range config.Pipelines {
			if p.Name == "" || len(p.Sources) == 0 || p.Sink == "" || p.Backlog.MaxBytes <= 0 || p.Retry.Initial <= 0 {
				t.Errorf("accepted an incomplete pipeline: %+v", p)
			}
		}
	})
}
