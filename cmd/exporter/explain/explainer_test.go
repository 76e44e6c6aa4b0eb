package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
	apijson "k8s.io/apimachinery/pkg/util/json"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/file"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/stdout"
	"github.com/kubeferry/kubeferry/sinks/webhook"
)

// documentedKey is the key of the digests on the pages.
const documentedKey = "the key of the documentation"

var update = flag.Bool("update", false, "write the golden files anew")

// runExplain runs the command with a configuration, at a fixed time.
func runExplain(t *testing.T, config string, flags Options, path, stdin string) (string, error) {
	t.Helper()
	if flags.Output == "" {
		flags.Output = "text"
	}
	flags.Now = func() time.Time { return time.Date(2026, 11, 21, 0, 12, 3, 123456000, time.UTC) }
	var out bytes.Buffer
	err := runWith(t.Context(), config, flags, path, strings.NewReader(stdin), &out)
	return out.String(), err
}

// runWith loads the configuration with the sinks that the tests name, and explains.
func runWith(ctx context.Context, configured string, options Options, path string, stdin io.Reader, out io.Writer) error {
	loaded, _, err := config.Load(configured, config.Options{Kinds: []sinks.Kind{kafka.Kind(), nats.Kind(), webhook.Kind(), stdout.Kind(), file.Kind()}})
	if err != nil {
		return err
	}
	options.Config = loaded
	return Run(ctx, options, path, stdin, out)
}

func TestExplainGolden(t *testing.T) {
	dir := "testdata"
	for name, output := range map[string]string{"explain.txt": "text", "explain.json": "json"} {
		t.Run(output, func(t *testing.T) {
			got, err := runExplain(t, filepath.Join(dir, "config.yaml"), Options{
				Old: filepath.Join(dir, "before.yaml"), Output: output,
			}, filepath.Join(dir, "after.yaml"), "")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join(dir, name)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// TestExplainFiltersPage compares explain with what docs/filters.md states for each expression.
func TestExplainFiltersPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	samples := map[string]Options{}
	tried := 0
	blocks := regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	for _, block := range blocks { // they stand behind the examples
		first, _, _ := strings.Cut(block[2], "\n")
		if name, ok := strings.CutPrefix(first, "# sample "); ok {
			samples[name] = writeSample(t, dir, name, block[2])
		}
	}
	for _, block := range blocks {
		if block[1] != "cel" {
			continue
		}
		for _, expr := range strings.Split(block[2], "\n\n") {
			tried++
			checkFilterExample(t, dir, expr, samples)
		}
	}
	if tried < 25 || len(samples) != 4 {
		t.Errorf("found %d examples and %d changes", tried, len(samples))
	}
	checkExplainExample(t, dir, string(page), samples["web"])
}

// checkFilterExample explains each change; a comment names those for which expr is true, and those on which it fails.
func checkFilterExample(t *testing.T, dir, expr string, samples map[string]Options) {
	t.Helper()
	config := filepath.Join(dir, "config.yaml")
	writeYAML(t, config, map[string]any{
		"cluster": "c",
		"sources": []any{map[string]any{"name": "s", "resources": []string{"apps/v1/deployments", "v1/pods", "v1/events", "v1/namespaces"}}},
		"pipelines": []any{map[string]any{
			"name": "p", "sink": "out", "filters": []any{map[string]any{"expr": expr, "onError": "deadLetter"}},
		}},
		"sinks": []any{map[string]any{"name": "out", "stdout": map[string]any{}}},
	})
	stated := regexp.MustCompile(`^// .*\[(.*?)(?:; fails: (.*))?\]\n`).FindStringSubmatch(expr)
	if stated == nil {
		t.Fatalf("%s: the page has no results", expr)
	}
	for name, flags := range samples {
		flags.Output = "json"
		text, err := runExplain(t, config, flags, filepath.Join(dir, name+".yaml"), "")
		if err != nil {
			t.Fatalf("%s%s: %v", expr, name, err)
		}
		var got answer
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		in := func(names string) bool { return slices.Contains(strings.Split(names, ", "), name) }
		if p := got.Pipelines[0]; p.Sent != in(stated[1]) || p.DeadLetter != in(stated[2]) {
			t.Errorf("%s%s: sent %t, dead letter %t, the page says otherwise: %s", expr, name, p.Sent, p.DeadLetter, text)
		}
	}
}

// checkExplainExample compares what the page shows of explain itself.
func checkExplainExample(t *testing.T, dir, page string, flags Options) {
	t.Helper()
	_, section, _ := strings.Cut(page, "\n## Try a filter\n")
	found := regexp.MustCompile("(?s)```yaml\n(.*?)```.*?```console\n\\$ .*? web.yaml\n(.*?)```").FindStringSubmatch(section)
	if found == nil {
		t.Fatal("the page shows no example of explain")
	}
	file := filepath.Join(dir, "example.yaml")
	config := "cluster: prod\nsources: [{name: workloads, resources: [apps/v1/deployments]}]\nsinks: [{name: log, kafka: {brokers: [kafka]}}]\n" +
		"pipelines:\n- name: audit\n  sink: log\n" + regexp.MustCompile(`(?m)^`).ReplaceAllString(found[1], "  ")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := runExplain(t, file, flags, filepath.Join(dir, "web.yaml"), "")
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ = strings.Cut(got, "  record "); got != found[2] {
		t.Errorf("got:\n%s\nthe page has:\n%s", got, found[2])
	}
}

func writeSample(t *testing.T, dir, name, text string) Options {
	t.Helper()
	var sample struct {
		Type      string
		Snapshot  bool
		Object    map[string]any
		OldObject map[string]any `yaml:"oldObject"`
	}
	if err := yaml.Unmarshal([]byte(text), &sample); err != nil {
		t.Fatal(err)
	}
	flags := Options{Type: sample.Type, Snapshot: sample.Snapshot}
	writeYAML(t, filepath.Join(dir, name+".yaml"), sample.Object)
	if sample.OldObject != nil {
		flags.Old = filepath.Join(dir, name+".old.yaml")
		writeYAML(t, flags.Old, sample.OldObject)
	}
	return flags
}

func writeYAML(t *testing.T, path string, value any) {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestExplainTransformsPage compares explain's record with what docs/transforms.md shows for each transform.
func TestExplainTransformsPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/transforms.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	example, tried := map[string]string{}, 0
	for _, block := range regexp.MustCompile("(?ms)^```(\\S+) (\\S+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		example[block[2]] = block[3]
		if block[2] != "after" && block[2] != "error" {
			continue
		}
		tried++
		config := fmt.Sprintf("cluster: c\nredaction: {key: %q}\nsources: [{name: s, resources: [v1/pods, v1/secrets, v1/configmaps, apps/v1/deployments]}]\n"+
			"sinks: [{name: out, stdout: {}}]\npipelines:\n- name: p\n  sink: out\n  format: raw\n%s", documentedKey,
			regexp.MustCompile(`(?m)^`).ReplaceAllString(example["transforms"], "  "))
		path := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		text, err := runExplain(t, path, Options{Type: "MODIFIED", Output: "json"}, "-", example["before"])
		if err != nil {
			t.Fatalf("%s%v", example["before"], err)
		}
		var got answer
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		p := got.Pipelines[0]
		if block[2] == "error" {
			if want := strings.TrimSuffix(block[3], "\n"); !p.DeadLetter || !strings.HasSuffix(p.Answer, want) {
				t.Errorf("got %q, want %q", p.Answer, want)
			}
			continue
		}
		if p.Record == nil || string(encoded(readObject(t, string(p.Record.Body)))) != string(encoded(readObject(t, block[3]))) {
			t.Errorf("got:\n%s\nwant the object:\n%s", text, block[3])
		}
	}
	if tried < 6 {
		t.Errorf("tried %d examples", tried)
	}
}

// An interruption ends it without an answer.
func TestExplainStops(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	dir := "testdata"
	var out bytes.Buffer
	flags := Options{Output: "text", Now: time.Now}
	err := runWith(ctx, filepath.Join(dir, "config.yaml"), flags, filepath.Join(dir, "after.yaml"), nil, &out)
	if err == nil || out.Len() > 0 {
		t.Errorf("got %v and %q", err, out.String())
	}
}

func readObject(t *testing.T, text string) map[string]any {
	t.Helper()
	var value, object map[string]any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := apijson.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

// An object's name makes no line of its own, and reaches no terminal as it is.
func TestControlCharacters(t *testing.T) {
	const role = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"a\naudit: sent to x\u001b[2J\u009b2J","namespace":"shop","uid":"u","resourceVersion":"7"}}`
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := "{cluster: c, sources: [{name: s, resources: [rbac.authorization.k8s.io/v1/roles]}], pipelines: [{name: audit, sink: out}], sinks: [{name: out, stdout: {}}]}"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := runExplain(t, path, Options{}, "-", role)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(got, "\x1b\u009b") || strings.Count(got, "\naudit: ") != 1 {
		t.Errorf("got %q", got)
	}
}
