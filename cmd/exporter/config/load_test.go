package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

func TestDefaults(t *testing.T) {
	config, warnings := parse(t, minimal, nil)
	sink := config.Sinks[0]
	config.Sinks = nil
	want := &Config{
		Cluster: "c",
		Sources: []Source{{
			Name: "s", Resources: []schema.GroupVersionResource{{Version: "v1", Resource: "pods"}}, Snapshot: delta.SnapshotInitial, Check: 24 * time.Hour,
		}},
		Pipelines: []Pipeline{{
			Name: "p", Sources: []string{"s"}, OnLeave: shape.OnLeaveIgnore, Diff: shape.DiffNone, Format: shape.FormatCloudEvents, Encoding: shape.EncodingJSON, Profile: shape.ProfileKubeferry, Sink: "out",
			Backlog:       Backlog{MaxBytes: 64 << 20, MaxDiskBytes: 10 << 30, Overflow: OverflowBlock},
			Retry:         pipeline.Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second},
			RedactSecrets: true,
		}},
		Enrichment:  Enrichment{Resources: config.Enrichment.Resources, MaxBytes: 32 << 20},
		Previous:    Previous{MaxBytes: 64 << 20},
		DeadLetters: DeadLetters{MaxBytes: 1 << 30},
		Server:      Server{Listen: ":8080"},
		Log:         Log{Level: "info", Format: "json"},
		Shutdown:    Shutdown{Grace: 20 * time.Second},
	}
	if !reflect.DeepEqual(config, want) {
		t.Errorf("got  %+v\nwant %+v", config, want)
	}
	if sink.Name != "out" || sink.Kind != "stdout" || !reflect.DeepEqual(sink.Config, fakeKinds()[3].New()) {
		t.Errorf("got sink %+v, want the defaults of stdout", sink)
	}
	if len(warnings) != 0 {
		t.Errorf("got warnings %v, want none", warnings)
	}
}

func TestDecode(t *testing.T) {
	config, _ := parse(t, `
cluster: prod-eu-1
sources:
  - &base
    name: a
    resources: [apps/v1/deployments, example.com/v1beta1/widgets]
    namespaces: {include: [shop, "team-*"], exclude: [team-x]}
    labelSelector: app in (web, api)
    snapshot: never
  - <<: *base
    name: b
    resources: [v1/configmaps]
pipelines:
  - name: p
    filters:
      - types: [ADDED, DELETED]
      - namespaces: {exclude: ["x-*"]}
    sink: bus
    deadLetter: k
    backlog: {maxBytes: 1.5Gi}
    retry: {initial: 1s, attempts: 3}
    keepManagedFields: true
sinks:
  - name: bus
    nats:
      stream: {name: S, maxAge: 1h30m, maxBytes: 1048576}
      batch: {linger: 0}
  - name: k
    kafka: {brokers: [a, b], tls: {caFile: /ca}}
`, nil)
	if got, want := config.Sources[1].Namespaces, config.Sources[0].Namespaces; !reflect.DeepEqual(got, want) || len(got.Include) != 2 {
		t.Errorf("merged namespaces: got %v, want %v", got, want)
	}
	if got := config.Sources[1].Resources; !slices.Equal(got, []schema.GroupVersionResource{{Version: "v1", Resource: "configmaps"}}) {
		t.Errorf("a key of its own must win over a merged one, got %v", got)
	}
	p := config.Pipelines[0]
	if !slices.Equal(p.Filters[0].Types, []delta.Type{delta.Added, delta.Deleted}) || p.Filters[1].Namespaces.Match("x-1") {
		t.Errorf("got filters %+v", p.Filters)
	}
	if p.Backlog.MaxBytes != 3<<29 || p.Retry != (pipeline.Retry{Initial: time.Second, Max: 30 * time.Second, Attempts: 3}) || !p.KeepManagedFields || !p.RedactSecrets {
		t.Errorf("got pipeline %+v", p)
	}
	bus := config.Sinks[0].Config.(*fakeNATS)
	if bus.Stream.MaxAge != 90*time.Minute || bus.Stream.MaxBytes != 1<<20 || bus.Batch.Linger != 0 || bus.Batch.MaxRecords != 500 || bus.TLS != nil || !bus.JetStream {
		t.Errorf("got nats %+v", bus)
	}
	if k := config.Sinks[1].Config.(*fakeKafka); !slices.Equal(k.Brokers, []string{"a", "b"}) || k.TLS.CAFile != "/ca" || k.Key != "object" {
		t.Errorf("got kafka %+v", k)
	}
}

func TestDecodeTransforms(t *testing.T) {
	config, warnings := parse(t, strings.Replace(minimal, "name: p,", `name: p,
    filters: [{changed: [spec, 'metadata["labels"]']}],
    onLeave: deleted, diff: jsonPatch,
    transforms: [
      {remove: [status, 'metadata.annotations["a.b/c"]']},
      {keep: [apiVersion, kind, metadata, "spec.containers[*].env"]},
      {redact: ["spec.containers[*].env[*].value"]},
      {set: {metadata.labels.z: '"eu"', 'metadata.labels["a.b"]': 'object.metadata.name', metadata.annotations: "{'a': ${TEXT}}"}},
      {rename: {spec.containers: spec.pods, metadata.labels.z: "${TARGET}"}}],`, 1), map[string]string{"TEXT": `"b"`, "TARGET": "metadata.labels.y"})
	p := config.Pipelines[0]
	if got := fmt.Sprint(p.Filters[0].Changed); got != "[spec metadata.labels]" {
		t.Errorf("changed: got %s", got)
	}
	if p.OnLeave != shape.OnLeaveDeleted || p.Diff != shape.DiffJSONPatch {
		t.Errorf("got onLeave %s, diff %s", p.OnLeave, p.Diff)
	}
	if len(warnings) != 0 {
		t.Errorf("got warnings %v", warnings)
	}
	list := p.Transforms
	if got := fmt.Sprint(list[0].Remove, list[1].Keep, list[2].Redact); got !=
		`[status metadata.annotations["a.b/c"]] [apiVersion kind metadata spec.containers[*].env] [spec.containers[*].env[*].value]` {
		t.Errorf("got %s", got)
	}
	var got []string
	for _, a := range list[3].Set {
		got = append(got, a.Path.String()+" = "+a.Value.String())
	}
	for _, m := range list[4].Rename {
		got = append(got, m.From().String()+" to "+m.To().String())
	}
	want := []string{
		`metadata.labels.z = "eu"`, `metadata.labels["a.b"] = object.metadata.name`, `metadata.annotations = {'a': "b"}`,
		"spec.containers to spec.pods", "metadata.labels.z to metadata.labels.y",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q, in the order of the file", got, want)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(path, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path, testOptions(nil)); err != nil {
		t.Errorf("Load: %v", err)
	}
	missing := filepath.Join(dir, "missing.yaml")
	_, _, err := Load(missing, testOptions(nil))
	if want := missing + ": cannot be read: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, _, err := Load(dir, testOptions(nil)); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("got %v for a directory", err)
	}
	if err := os.WriteFile(path, append([]byte(minimal), strings.Repeat("# much\n", maxFileBytes/7)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path, testOptions(nil)); err == nil || !strings.Contains(err.Error(), "larger than 4Mi") {
		t.Errorf("got %v for a large file", err)
	}
}

// TestEmptySection: an optional section changes what the program does by being there, so a null is not taken for none.
func TestEmptySection(t *testing.T) {
	with := func(tls string) string {
		return strings.Replace(minimal, "stdout: {}", "kafka: {brokers: [a], tls: "+tls+"}", 1)
	}
	for _, null := range []string{"", "null", "~"} {
		faults := faultsOf(t, with(null), nil)
		want := "is empty: write tls: {} to use it with its defaults, or remove the key"
		if len(faults) != 1 || faults[0].Path != "sinks[0].kafka.tls" || faults[0].Message != want {
			t.Errorf("tls: %s: got %v, want %s", null, faults, want)
		}
	}
	// Where the globs below it are commented out, a source would watch every namespace.
	faults := faultsOf(t, strings.Replace(minimal, "resources:", "namespaces: , resources:", 1), nil)
	if len(faults) != 1 || faults[0].Path != "sources[0].namespaces" || !strings.HasPrefix(faults[0].Message, "is empty: ") {
		t.Errorf("namespaces: got %v", faults)
	}
	config, _ := parse(t, with("{}"), nil)
	if config.Sinks[0].Config.(*fakeKafka).TLS == nil {
		t.Error("tls: {} does not use TLS")
	}
}

func TestFaultsHaveColumns(t *testing.T) {
	faults := faultsOf(t, strings.Replace(minimal, "sink: out", "snk: out", 1), nil)
	want := Fault{File: "config.yaml", Line: 3, Column: 23, Path: "pipelines[0].snk", Message: `unknown key; did you mean "sink"?`}
	if len(faults) != 1 || faults[0] != want {
		t.Errorf("got %+v, want %+v", faults, want)
	}
}

// TestPipelinesOfASource: as many as it can have load.
func TestPipelinesOfASource(t *testing.T) {
	text := func(n int) string {
		pipelines := "{name: other, sink: out, sources: [other]}"
		for i := range n {
			pipelines += fmt.Sprintf(", {name: p%d, sink: out, sources: [s]}", i)
		}
		return strings.NewReplacer("{name: p, sink: out}", pipelines, "{name: s,", "{name: other, resources: [v1/nodes]}, {name: s,").Replace(minimal)
	}
	_, _ = parse(t, text(MaxPipelines), nil)
	if faults := faultsOf(t, text(MaxPipelines+1), nil); len(faults) != 1 || faults[0].Path != "sources[1]" || !strings.Contains(faults[0].Message, "65 pipelines") {
		t.Errorf("got %v", faults)
	}
}

func TestDeepNesting(t *testing.T) {
	for _, text := range []string{
		"cluster: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"cluster: " + strings.Repeat("{a: ", 2000) + "b" + strings.Repeat("}", 2000),
		"cluster: " + strings.Repeat("[", 20000),
	} {
		_ = faultsOf(t, text, nil)
	}
}

// TestNoDocument: a file without a value is empty, whatever else is in it.
func TestNoDocument(t *testing.T) {
	for _, text := range []string{"", "\n", "# a comment\n", "---\n", "---\n...\n", "%YAML 1.1\n---\n", "\ufeff", "~"} {
		if faults := faultsOf(t, text, nil); len(faults) != 1 || !strings.Contains(faults[0].Message, "the file is empty") {
			t.Errorf("%q: got %v", text, faults)
		}
	}
}

// TestAliasAsKey: a key may be an alias, as any scalar.
func TestAliasAsKey(t *testing.T) {
	config, _ := parse(t, strings.Replace(minimal, "cluster: c", "&name cluster: &key stateDir\n*key : /x", 1), nil)
	if config.Cluster != "stateDir" || config.StateDir != "/x" {
		t.Errorf("got %+v", config)
	}
}

// TestAliasBombs: a small file cannot grow large, by aliases or by merge keys.
func TestAliasBombs(t *testing.T) {
	wide := "a: &a [" + strings.Repeat("x,", 10000) + "]\nb: [" + strings.Repeat("*a,", 10000) + "]\n"
	deep, merged := "a0: &a0 [x]\n", "a0: &a0 {k: v}\n"
	for i := 1; i < 30; i++ {
		deep += fmt.Sprintf("a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
		merged += fmt.Sprintf("a%d: &a%d {<<: [*a%d, *a%d], k%d: v}\n", i, i, i-1, i-1, i)
	}
	for name, text := range map[string]string{"wide": wide, "deep": deep, "merged": merged} {
		faults := faultsOf(t, text+minimal, nil)
		if want := "not valid YAML: document contains excessive aliasing"; len(faults) != 1 || faults[0].Message != want {
			t.Errorf("%s: got %.200s, want %s", name, faults, want)
		}
	}
}
