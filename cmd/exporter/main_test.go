package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kubeferry": main})
}

// TestScripts runs the command lines of testdata/*.txtar against the real program.
func TestScripts(t *testing.T) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // else the programs inherit that nohup, which may run the tests, ignores it
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

// TestEmptyBlocks puts a null in place of every section and list of config.example.yaml, which has every key. It is
// refused, or means the same as an empty one and as none at all.
func TestEmptyBlocks(t *testing.T) {
	data, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file yaml.Node
	for _, edit := range [][2]string{ // all is uncommented, but for the other ways to give a key or to log in
		{`(?m)^ *#oauth2:.*\n( *#(tokenURL|clientID|clientSecretFile|clientSecret|scopes|parameters|tls):.*\n)+`, ""},
		{`(?m)^ *#extensions:.*`, ""},
		{"createTopics: false", "createTopics: true"},
		{`(?m)^ *#(key|password|credsFile|nkeySeedFile|tokenFile|bearerTokenFile|region):.*`, ""},
		{`(?m)^( *)#(\S)`, "$1$2"},
		{"nats://", "tls://"},
	} {
		data = regexp.MustCompile(edit[0]).ReplaceAll(data, []byte(edit[1]))
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	result := func() (shown string, valid bool) {
		text, err := yaml.Marshal(&file)
		if err != nil {
			t.Fatal(err)
		}
		loaded, _, err := config.Parse(text, "config.yaml", config.Options{
			Kinds: kinds(), Getenv: func(string) (string, bool) { return "10.0.0.1", true },
		})
		var faults config.Faults
		if errors.As(err, &faults) {
			for _, fault := range faults {
				shown += fault.Path + ": " + fault.Message + "\n"
			}
			return shown, false
		}
		decoded, err := yaml.Marshal(loaded)
		if err != nil {
			t.Fatal(err)
		}
		return string(decoded), true
	}
	if faults, valid := result(); !valid {
		t.Fatalf("the example is not valid: %s", faults)
	}
	refused, same := 0, 0
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		content := n.Content
		for i, block := range content {
			at := fmt.Sprintf("%s[%d]", path, i)
			if n.Kind == yaml.MappingNode {
				at = strings.TrimPrefix(path+"."+content[max(i-1, 0)].Value, ".")
			}
			if block.Kind == yaml.ScalarNode {
				continue
			}
			walk(block, at)
			n.Content = slices.Clone(content)
			n.Content[i] = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
			null, _ := result()
			if strings.Contains(null, at+": is empty") || strings.Contains(null, at+": must be a mapping") {
				n.Content = content
				refused++
				continue
			}
			n.Content[i] = &yaml.Node{Kind: block.Kind}
			empty, _ := result()
			none, optional := empty, false
			if n.Kind == yaml.MappingNode {
				n.Content = slices.Delete(n.Content, i-1, i+1)
				none, optional = result()
			}
			n.Content = content
			if null != empty || optional && null != none {
				t.Errorf("%s: got\n%s\nfor a null,\n%s\nfor an empty one,\n%s\nfor none", at, null, empty, none)
			}
			same++
		}
	}
	walk(file.Content[0], "")
	if refused < 30 || same < 10 {
		t.Errorf("%d nulls are refused, and %d mean nothing; want more of both", refused, same)
	}
}
