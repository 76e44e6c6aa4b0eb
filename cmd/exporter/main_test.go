package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
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

// A variable that is not set may stand in each place of the example where a value is, and in all of them at once.
func TestAllowUnset(t *testing.T) {
	data, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	check := func(what string) {
		t.Helper()
		text, err := yaml.Marshal(&document)
		if err != nil {
			t.Fatal(err)
		}
		options := config.Options{Kinds: kinds(), Getenv: func(string) (string, bool) { return "", false }, AllowUnset: true}
		if _, _, err := config.Parse(text, "config.yaml", options); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	values := scalars(&document)
	for _, value := range values {
		was := *value
		*value = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "${UNSET}"}
		check("instead of " + was.Value)
		*value = was
	}
	for _, value := range values {
		*value = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "${UNSET}"}
	}
	check("everywhere")
	if len(values) < 80 {
		t.Errorf("found %d values", len(values))
	}
}

// scalars are the values in a document that are neither lists nor maps.
func scalars(n *yaml.Node) (values []*yaml.Node) {
	for i, child := range n.Content {
		switch {
		case n.Kind == yaml.MappingNode && i%2 == 0, child.Tag == "!!null": // a key, or a section without keys
		case child.Kind == yaml.ScalarNode:
			values = append(values, child)
		default:
			values = append(values, scalars(child)...)
		}
	}
	return values
}
