package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kubeferry/kubeferry/internal/config"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"exporter": main})
}

// TestScripts runs the command lines of testdata/*.txtar against the real program.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata"})
}

// The example that users start from loads with the real sinks, and gives up no promise.
func TestExample(t *testing.T) {
	_, warnings, err := config.Load("../../config.example.yaml", config.Options{
		Kinds:  kinds(),
		Getenv: func(string) (string, bool) { return "value", true },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, warning := range warnings {
		t.Errorf("warning: %v", warning)
	}
}
