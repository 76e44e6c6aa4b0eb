package sinks_test

import (
	"encoding/json"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentedSink takes the sink of docs/sinks.md from that page, puts it where it belongs, and runs its test and
// an exporter that has it. All of it goes through an overlay: nothing is written into the tree.
func TestDocumentedSink(t *testing.T) {
	page, err := os.ReadFile("../docs/sinks.md")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replace := map[string]string{}
	add := func(path, content string) {
		t.Helper()
		copied := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		put(t, copied, []byte(content))
		replace[filepath.Join(root, path)] = copied
	}
	for _, match := range regexp.MustCompile("(?s)```go\n// (sinks/line/\\S+)\n\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		formatted, err := format.Source([]byte(match[2]))
		if err != nil || string(formatted) != match[2] {
			t.Errorf("%s is not formatted: %v", match[1], err)
		}
		add(match[1], match[2])
	}
	if len(replace) != 3 {
		t.Fatalf("got %d files, want the sink's two and its test", len(replace))
	}
	registry, err := os.ReadFile("../cmd/exporter/sinks.go")
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(registry), "\t\tfile.Kind(),\n", "\t\tfile.Kind(),\n\t\tline.Kind(),\n", 1)
	changed = strings.Replace(changed, "import (\n", "import (\n\t\"github.com/kubeferry/kubeferry/sinks/line\"\n", 1)
	add("cmd/exporter/sinks.go", changed)

	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := put(t, filepath.Join(dir, "overlay.json"), overlay)
	run := func(want, name string, args ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), name, args...)
		command.Dir = root
		out, err := command.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s %s: %v\n%s\nwant %q", filepath.Base(name), strings.Join(args, " "), err, out, want)
		}
	}
	suite, exporter := filepath.Join(dir, "suite"), filepath.Join(dir, "exporter")
	// Vet and the test itself would be run in the package's directory, which does not exist.
	run("", "go", "test", "-overlay", overlayFile, "-c", "-vet=off", "-o", suite, "./sinks/line")
	run("--- PASS: TestSuite/check_while_away", suite, "-test.v", "-test.timeout=5m")

	section := regexp.MustCompile("(?s)```yaml\n(sinks:\n.*?line:.*?)```").FindStringSubmatch(string(page))
	if section == nil {
		t.Fatal("the page has no section of the configuration")
	}
	config := put(t, filepath.Join(dir, "config.yaml"), []byte("cluster: test\nsources: [{name: s, resources: [v1/pods]}]\npipelines: [{name: p, sink: lines}]\n"+section[1]))
	run("", "go", "build", "-overlay", overlayFile, "-o", exporter, "./cmd/exporter")
	run("is valid. Sources: 1, pipelines: 1, sinks: 1", exporter, "validate", "--config", config)
	run("file with the token to log in with", exporter, "schema")
}
