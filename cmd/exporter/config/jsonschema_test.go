package config

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

const example = "../../../config.example.yaml"

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	data, err := Schema(fakeKinds())
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("config.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("config.json") // checks it against the metaschema
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func check(t *testing.T, schema *jsonschema.Schema, text string) error {
	t.Helper()
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return schema.Validate(value)
}

func TestSchemaAccepts(t *testing.T) {
	schema := compileSchema(t)
	data, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"minimal":     minimal,
		"example":     string(data),
		"uncommented": uncomment(string(data)),
		"expansion":   strings.Replace(minimal, "name: p,", `name: p, retry: {attempts: "${N}", max: "${M}s"}, format: "${F}", keepManagedFields: "${K}",`, 1),
		"numbers":     strings.Replace(minimal, "name: p,", `name: p, retry: {initial: 1h30m0.5s}, backlog: {maxBytes: 65536},`, 1),
		"expr":        strings.Replace(minimal, "name: p,", `name: p, filters: [{expr: snapshot}, {expr: "!inferred", onError: deadLetter}],`, 1),
		"transforms":  strings.Replace(minimal, "name: p,", `name: p, transforms: [{remove: [status]}, {set: {a.b: "'x'"}}, {rename: {a: b}}], filters: [{changed: [spec]}],`, 1),
		"enrich":      strings.Replace(minimal, "name: p,", `name: p, enrich: involvedObject,`, 1) + "enrichment: {maxBytes: 2Mi}\n",
		"dotted":      strings.Replace(minimal, "v1/pods", "deployments.v1.apps, pods.v1, deploy, widgets.example.com", 1),
		"null":        minimal + "redaction:\n",
	} {
		if err := check(t, schema, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSchemaRefuses: the schema refuses the bad files whose faults a schema can express.
func TestSchemaRefuses(t *testing.T) {
	schema := compileSchema(t)
	for _, name := range []string{"unknown-keys", "wrong-types", "not-a-mapping", "nothing-in-it", "all-missing", "kitchen-sink", "transforms"} {
		data, err := os.ReadFile(filepath.Join("testdata/bad", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if check(t, schema, string(data)) == nil {
			t.Errorf("%s: the schema accepts it", name)
		}
	}
	for _, change := range [][2]string{
		{"cluster: c", "cluster: 5"},
		{"cluster: c", "clutser: c"},
		{"resources: [v1/pods]", "resources: []"},
		{"resources: [v1/pods]", "resources: [Pods]"},
		{"resources: [v1/pods]", "resources: [/v1/pods]"},
		{"resources: [v1/pods]", "resources: v1/pods"},
		{"sink: out", "snk: out"},
		{"sink: out", "sink: out, format: xml"},
		{"sink: out", "sink: out, filters: [{}]"},
		{"sink: out", "sink: out, filters: [{types: [ADDED], namespaces: {}}]"},
		{"sink: out", "sink: out, filters: [{types: [ADD]}]"},
		{"sink: out", "sink: out, filters: [{expr: snapshot, types: [ADDED]}]"},
		{"sink: out", "sink: out, filters: [{types: [ADDED], onError: pass}]"},
		{"sink: out", "sink: out, filters: [{onError: pass}]"},
		{"sink: out", "sink: out, filters: [{expr: snapshot, onError: dead}]"},
		{"sink: out", "sink: out, filters: [{expr: 5}]"},
		{"sink: out", "sink: out, filters: [{changed: spec}]"},
		{"sink: out", "sink: out, onLeave: delete"},
		{"sink: out", "sink: out, diff: patch"},
		{"sink: out", "sink: out, enrich: true"},
		{"sink: out", "sink: out, transforms: [{}]"},
		{"sink: out", "sink: out, transforms: [{remove: [a], keep: [b]}]"},
		{"sink: out", "sink: out, transforms: [{delete: [a]}]"},
		{"sink: out", "sink: out, transforms: [{set: {a: 5}}]"},
		{"sink: out", "sink: out, transforms: [{rename: {}}]"},
		{"sink: out", "sink: out, transforms: [{rename: [a, b]}]"},
		{"sink: out", "sink: out, retry: {initial: 5}"},
		{"sink: out", "sink: out, retry: {initial: soon}"},
		{"sink: out", "sink: out, backlog: {maxBytes: 64MB}"},
		{"sink: out", `sink: out, keepManagedFields: "true"`},
		{"stdout: {}", "stdout: {x: 1}"},
		{"stdout: {}", "stdout: {batch: {maxRecords: many}}"},
		{"stdout: {}", "stdout: {}, kafka: {}"},
		{"stdout: {}", "kafka: {brokers: [a], tls: }"},
		{", stdout: {}", ""},
		{"name: out, ", ""},
	} {
		text := strings.Replace(minimal, change[0], change[1], 1)
		if text == minimal {
			t.Fatalf("%q is not in the minimal file", change[0])
		}
		if check(t, schema, text) == nil {
			t.Errorf("%s: the schema accepts it", change[1])
		}
		_ = faultsOf(t, text, nil)
	}
}

// uncomment turns the example's "#key: value" lines into settings.
func uncomment(text string) string {
	return regexp.MustCompile(`(?m)^( *)#(\S)`).ReplaceAllString(text, "$1$2")
}

func TestExample(t *testing.T) {
	config, warnings, err := Load(example, testOptions(nil))
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) > 0 {
		t.Errorf("got warnings %v, want none", warnings)
	}
	kinds := map[string]bool{}
	for _, sink := range config.Sinks {
		kinds[sink.Kind] = true
	}
	if len(kinds) != len(fakeKinds()) {
		t.Errorf("got kinds %v, want each kind", kinds)
	}
}

// TestExampleUncommented: what is commented out is right too, but for the two ways to give one key.
func TestExampleUncommented(t *testing.T) {
	data, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	faults := faultsOf(t, uncomment(string(data)), map[string]string{
		"KAFKA_PASSWORD": "x", "KAFKA_CLIENT_SECRET": "s", "HOOK_CLIENT_SECRET": "s", "NATS_PASSWORD": "x", "HOOK_PASSWORD": "x", "POD_IP": "10.0.0.1", "REDACTION_KEY": "0123456789abcdef",
	})
	if len(faults) != 1 || faults[0].Path != "redaction" {
		t.Errorf("got %v, want only that redaction has both keys", faults)
	}
}

// TestExampleComplete: every key of the schema is in the example, as a setting or commented out.
func TestExampleComplete(t *testing.T) {
	data, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	text := uncomment(string(data))
	for name := range properties(compileSchema(t), map[string]bool{}) {
		if !regexp.MustCompile(`(?m)[ {-]` + regexp.QuoteMeta(name) + `:|^` + regexp.QuoteMeta(name) + `:`).MatchString(text) {
			t.Errorf("the example does not show %s", name)
		}
	}
}

func properties(schema *jsonschema.Schema, names map[string]bool) map[string]bool {
	for name, property := range schema.Properties {
		names[name] = true
		properties(property, names)
	}
	if items, ok := schema.Items2020, schema.Items2020 != nil; ok {
		properties(items, names)
	}
	return names
}
