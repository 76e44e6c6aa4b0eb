package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// tailing is a running `kubeferry tail`.
type tailing struct {
	tb             testing.TB
	process        *process.Process
	dir, out, errs string
}

// startTail returns once every change will be seen.
func startTail(tb testing.TB, kubeconfig string, args ...string) *tailing {
	tb.Helper()
	logs := tb.TempDir()
	t := &tailing{tb: tb, dir: tb.TempDir(), out: filepath.Join(logs, "out"), errs: filepath.Join(logs, "errs")}
	var err error
	t.process, err = process.Start(process.Options{
		Path: raceBinary(tb), Args: append([]string{"tail", "--kubeconfig", kubeconfig}, args...), Dir: t.dir, Log: t.errs, Stdout: t.out,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		t.process.Kill()
		if tb.Failed() {
			tb.Logf("kubeferry tail %q:\n%s\n%s", args, tail(t.out, 80), tail(t.errs, 80))
		}
	})
	eventually(tb, wide, "the watches are open", func() error {
		ended := false
		select {
		case <-t.process.Done():
			ended = true
		default:
		}
		text := tail(t.errs, 10)
		switch {
		case strings.Contains(text, "watching "):
			return nil
		case ended:
			tb.Fatalf("it ended: %v", t.process.Wait())
		}
		return errors.New(text)
	})
	return t
}

// Lines returns what was printed.
func (t *tailing) Lines() []string {
	t.tb.Helper()
	text, err := os.ReadFile(t.out)
	if err != nil {
		t.tb.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// Rows returns the lines of a table without times, with one blank between columns.
func (t *tailing) Rows() (rows []string) {
	t.tb.Helper()
	for _, line := range t.Lines() {
		if fields := strings.Fields(line); len(fields) > 0 {
			rows = append(rows, strings.Join(fields[1:], " "))
		}
	}
	return rows
}

// Interrupt ends it as Ctrl-C does. It has written no file.
func (t *tailing) Interrupt() {
	t.tb.Helper()
	t.process.Signal(syscall.SIGINT)
	if err := t.process.Wait(); err != nil {
		t.tb.Errorf("it ended with %v, want exit code 0", err)
	}
	t.Ended()
}

// Ended checks what is left.
func (t *tailing) Ended() {
	t.tb.Helper()
	if text, err := os.ReadFile(t.errs); err != nil || strings.Count(string(text), "\n") != 1 {
		t.tb.Errorf("on standard error is %s %v", text, err)
	}
	if files, err := os.ReadDir(t.dir); err != nil || len(files) > 0 {
		t.tb.Errorf("it left %v %v", files, err)
	}
}

// failTail returns the error of a `kubeferry tail` that ends by itself.
func failTail(tb testing.TB, kubeconfig string, args ...string) (text string, code int) {
	tb.Helper()
	out, err := exec.CommandContext(within(tb, wide), raceBinary(tb), append([]string{"tail", "--kubeconfig", kubeconfig}, args...)...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		tb.Errorf("kubeferry tail %q: got %v, want an exit code\n%s", args, err, out)
		return string(out), 0
	}
	return string(out), exit.ExitCode()
}

// TestTail changes objects and reads the lines about them. A Secret is shown as digests.
func TestTail(t *testing.T) {
	beside(t)
	config, kubeconfig, namespace := plane(t).Config(), plane(t).KubeconfigFile(), newNamespace(t, "tail")
	maps, hidden := objectsIn(t, config, configMaps, namespace), objectsIn(t, config, secrets, namespace)
	maps.Create("before", data("1"))
	all := startTail(t, kubeconfig, "cm,secrets", "-n", namespace)
	chosen := startTail(t, kubeconfig, "configmaps.v1", "--namespace", namespace, "-l", "app=web", "--field-selector", "metadata.name!=other",
		"--types", "modified,deleted", "--filter", `has(object.data) && object.data.value != "skip"`)
	asJSON := startTail(t, kubeconfig, "v1/configmaps", "-n", namespace, "-o", "json")
	asYAML := startTail(t, kubeconfig, "configmap", "-n", namespace, "-o", "yaml", "--snapshot")

	web := map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}, "data": map[string]any{"value": "1"}}
	maps.Create("web", web)
	maps.Create("other", web)
	maps.Patch("before", data("2"))
	maps.Patch("other", data("2"))
	maps.Patch("web", data("skip"))
	maps.Patch("web", data("3"))
	maps.Delete("web")
	want := []string{
		"TYPE OBJECT WHAT",
		"MODIFIED configmaps " + namespace + "/web data.value 3; by e2e.test", // its previous version did not pass
		"DELETED configmaps " + namespace + "/web data.value 3",
	}
	eventually(t, wide, "the chosen changes", func() error {
		if got := chosen.Rows(); !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
	hidden.Create("token", map[string]any{"stringData": map[string]any{"password": "planted-1"}})
	hidden.Patch("token", map[string]any{"stringData": map[string]any{"password": "planted-2"}})
	eventually(t, wide, "the Secret", func() error {
		if rows := all.Rows(); len(rows) < 10 {
			return fmt.Errorf("%d rows", len(rows))
		}
		return nil
	})
	lines := strings.Join(all.Rows(), "\n")
	for _, want := range []string{
		`(?m)^ADDED configmaps \S+/web data.value 1; by e2e.test$`,
		`(?m)^MODIFIED configmaps \S+/before data.value 1 → 2; by e2e.test$`, // the previous version was not shown
		`(?m)^DELETED configmaps \S+/web data.value 3$`,
		`(?m)^ADDED secrets \S+/token data.password redacted:[0-9a-f]{8}; by e2e.test$`,
		`(?m)^MODIFIED secrets \S+/token data.password redacted:[0-9a-f]{8} → redacted:[0-9a-f]{8}; by e2e.test$`,
	} {
		if !regexp.MustCompile(want).MatchString(lines) {
			t.Errorf("no line is like %s", want)
		}
	}
	if strings.Contains(lines, "\x1b") {
		t.Error("colors, but no terminal")
	}
	if strings.Contains(lines, "planted") || strings.Contains(lines, "cGxhbnRlZ") {
		t.Error("the data of the Secret are shown")
	}
	// Each is a process of its own, and may be behind the two that were waited for.
	eventually(t, wide, "the changes as JSON", func() error { return checkTailJSON(asJSON) })
	eventually(t, wide, "the changes as YAML", func() error { return checkTailYAML(asYAML) })
	for _, running := range []*tailing{all, chosen, asJSON, asYAML} {
		running.Interrupt()
	}
}

func checkTailJSON(running *tailing) error {
	var got []string
	for _, line := range running.Lines() {
		var record struct {
			Type   string
			Object struct {
				Metadata struct{ Name string }
			}
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		got = append(got, record.Type+" "+record.Object.Metadata.Name)
	}
	slices.Sort(got) // there is no order between objects
	want := []string{
		"ADDED other", "ADDED web", "DELETED web", "MODIFIED before", "MODIFIED other", "MODIFIED web", "MODIFIED web",
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("got  %q\nwant %q", got, want)
	}
	return nil
}

func checkTailYAML(running *tailing) error {
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(strings.Join(running.Lines(), "\n")), 1024)
	existed := false
	for range 8 {
		var record struct {
			Type     string
			Snapshot bool
			Object   struct {
				Metadata struct{ Name string }
			}
		}
		if err := decoder.Decode(&record); err != nil {
			return err
		}
		existed = existed || record.Snapshot && record.Type == "ADDED" && record.Object.Metadata.Name == "before"
	}
	if !existed {
		return errors.New("what existed is not shown")
	}
	return nil
}

// TestTailNamespace: as kubectl, it shows the namespace of the context, another one with -n, and all with -A. Objects that belong to no
// namespace are shown whichever it is, if they are named.
func TestTailNamespace(t *testing.T) {
	beside(t)
	config, here, elsewhere := plane(t).Config(), newNamespace(t, "here"), newNamespace(t, "elsewhere")
	kubeconfig := kubeconfigWithNamespace(t, plane(t).KubeconfigFile(), here)
	byDefault := startTail(t, kubeconfig, "cm,nodes")
	named := startTail(t, kubeconfig, "cm,nodes", "-n", elsewhere)
	all := startTail(t, kubeconfig, "cm,nodes", "-A")
	everything := startTail(t, kubeconfig)
	for _, namespace := range []string{elsewhere, here} {
		objectsIn(t, config, configMaps, namespace).Create("web", data("1"))
	}
	node := "node-of-" + here
	nodes := objectsIn(t, config, corev1.SchemeGroupVersion.WithResource("nodes"), "")
	nodes.Create(node, map[string]any{})
	defer nodes.Delete(node)
	objectsIn(t, config, configMaps, here).Create("last", data("1"))
	objectsIn(t, config, configMaps, elsewhere).Create("last", data("1"))
	var ofHere, ofElsewhere, ofNone []string
	for _, name := range []string{"last", "web"} {
		ofHere = append(ofHere, "configmaps "+here+"/"+name)
		ofElsewhere = append(ofElsewhere, "configmaps "+elsewhere+"/"+name)
	}
	ofNone = []string{"nodes " + node}
	for running, want := range map[*tailing][]string{
		byDefault: slices.Concat(ofHere, ofNone), named: slices.Concat(ofElsewhere, ofNone), all: slices.Concat(ofHere, ofElsewhere, ofNone), everything: ofHere,
	} {
		eventually(t, wide, "what is shown", func() error {
			var got []string
			for _, row := range running.Rows()[1:] {
				if fields := strings.Fields(row); slices.Contains(slices.Concat(ofHere, ofElsewhere, ofNone), fields[1]+" "+fields[2]) {
					got = append(got, fields[1]+" "+fields[2])
				}
			}
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				return fmt.Errorf("got  %q\nwant %q", got, want)
			}
			return nil
		})
		running.process.Kill()
	}
}

// kubeconfigWithNamespace writes a copy of a kubeconfig whose context has a namespace.
func kubeconfigWithNamespace(t *testing.T, file, namespace string) string {
	t.Helper()
	loaded, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	loaded.Contexts[loaded.CurrentContext].Namespace = namespace
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*loaded, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTailEnds: it ends by itself after its time, and quietly where its reader goes away.
func TestTailEnds(t *testing.T) {
	beside(t)
	kubeconfig, namespace := plane(t).KubeconfigFile(), newNamespace(t, "tail")
	maps := objectsIn(t, plane(t).Config(), configMaps, namespace)
	maps.Create("a", data("1"))
	begun := time.Now()
	short := startTail(t, kubeconfig, "cm", "-n", namespace, "--snapshot", "--for", "3s")
	if err := short.process.Wait(); err != nil || time.Since(begun) < 3*time.Second {
		t.Errorf("it ended after %v with %v", time.Since(begun), err)
	}
	short.Ended()
	if lines := short.Lines(); len(lines) != 2 || !strings.Contains(lines[1], "exists: data.value 1") {
		t.Errorf("got %q", lines)
	}

	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(within(t, 2*wide), raceBinary(t), "tail", "cm", "-n", namespace, "--kubeconfig", kubeconfig, "--snapshot")
	var errs strings.Builder
	command.Stdout, command.Stderr = write, &errs
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	if n, err := read.Read(make([]byte, 10)); n == 0 {
		t.Fatal(err)
	}
	_ = read.Close()
	maps.Patch("a", data("2"))
	if err := command.Wait(); err != nil || strings.Contains(errs.String(), "level=") || strings.Contains(errs.String(), "RACE") {
		t.Errorf("got %v, want exit code 0 and no complaint\n%s", err, errs.String())
	}
}

// TestTailRefuses: what cannot be shown is an error that says why, and what to do.
func TestTailRefuses(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "tail")
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	grantOne(t, plane(t).Config(), namespace, "", "configmaps")
	limited := writeKubeconfig(t, account)
	for _, test := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"podz"}, `the API server has no resource "podz" that can be watched; did you mean pods?`, 1},
		{[]string{"deployments.v1.batch"}, "did you mean apps/v1/deployments?", 1},
		{[]string{"pods,events"}, `"events" stands for v1/events and for events.k8s.io/v1/events: name one of them`, 1},
		{
			[]string{"configmaps,secrets", "-n", namespace},
			`a Role in namespace ` + namespace + `: {apiGroups: [""], resources: ["secrets"], verbs: [list, watch]}`, 1,
		},
		{[]string{"configmaps", "-A"}, "With --namespace NAME the rights in that namespace are enough.", 1},
		{[]string{"configmaps", "--filter", "object.foo =="}, "ERROR: <input>:1:14: Syntax error", 2},
		{[]string{"configmaps", "-l", "a b"}, "not a label selector such as app=web", 2},
		{[]string{"configmaps", "-o", "wide"}, `--output is "wide"; there are table, json and yaml`, 2},
	} {
		if got, code := failTail(t, limited, test.args...); !strings.Contains(got, test.want) || code != test.code {
			t.Errorf("%q: got exit code %d, %s\nwant %d, %s", test.args, code, got, test.code, test.want)
		}
	}

	// Without names it leaves out what is forbidden, and names it.
	all := startTail(t, limited, "-n", namespace)
	if text := tail(all.errs, 10); !strings.Contains(text, "not shown, since you may not list and watch them: ") || !strings.Contains(text, "watching v1/configmaps in "+namespace+";") {
		t.Errorf("got %s", text)
	}
}

// TestTailPipeline shows what a pipeline would send, and sends nothing.
func TestTailPipeline(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "tail")
	maps := objectsIn(t, plane(t).Config(), configMaps, namespace)
	hook := webhooktest.Start(t)
	dir := t.TempDir()
	stateDir := filepath.Join(dir, "state")
	file := filepath.Join(dir, "kubeferry.yaml")
	err := os.WriteFile(file, fmt.Appendf(nil, `
cluster: e2e
stateDir: %q
sources: [{name: s, resources: [configmaps.v1], namespaces: {include: [%s]}}]
pipelines:
  - {name: other, sink: hook}
  - name: p
    filters: [{expr: 'object.data.value != "skip"'}]
    transforms: [{remove: [data.hidden]}]
    deadLetter: dead
    format: raw
    sink: bus
sinks:
  - {name: hook, webhook: {url: %q}}
  - {name: dead, webhook: {url: %[3]q}}
  - {name: bus, nats: {urls: ["${UNSET_URL}"], subject: "k8s.{resource}.{name}"}}
`, stateDir, namespace, hook.URL()), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := plane(t).KubeconfigFile()
	rows := startTail(t, kubeconfig, "--config", file, "--pipeline", "p")
	records := startTail(t, kubeconfig, "--config", file, "--pipeline", "p", "-o", "json")
	content := func(value string) map[string]any {
		return map[string]any{"data": map[string]any{"value": value, "hidden": "planted"}}
	}
	maps.Create("a", content("1"))
	maps.Create("b", content("skip"))
	maps.Patch("a", content("2"))
	eventually(t, wide, "two changes", func() error {
		if n, m := len(rows.Lines()), len(records.Lines()); n < 3 || m < 2 {
			return fmt.Errorf("%d rows, %d records", n, m)
		}
		return nil
	})
	if got := rows.Lines(); !strings.Contains(got[0], " TO ") || !strings.Contains(got[1], " subject k8s.configmaps.a ") || !strings.HasSuffix(got[1], " data.value 1; by e2e.test") ||
		!strings.HasSuffix(got[2], " data.value 1 → 2; by e2e.test") || len(got) != 3 {
		t.Errorf("got %q", got)
	}
	for n, line := range records.Lines() {
		var record struct {
			Destination, ContentType string
			Body                     struct{ Data map[string]string }
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		if record.Destination != "subject k8s.configmaps.a" || len(record.Body.Data) != 1 || record.Body.Data["value"] != fmt.Sprint(n+1) {
			t.Errorf("got %s", line)
		}
	}
	rows.Interrupt()
	records.Interrupt()
	if _, err := os.Stat(stateDir); err == nil {
		t.Error("there is a state directory")
	}
	if requests := hook.Requests(); len(requests) > 0 {
		t.Errorf("%d requests were sent", len(requests))
	}
	if got, code := failTail(t, kubeconfig, "--config", file); code != 2 || !strings.Contains(got, "there are: other, p") {
		t.Errorf("without --pipeline: exit code %d, %s", code, got)
	}
}

// TestInit writes a file for names that the cluster resolves, and the file is valid.
func TestInit(t *testing.T) {
	beside(t)
	file := filepath.Join(t.TempDir(), "kubeferry.yaml")
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(within(t, wide), raceBinary(t), args...).CombinedOutput()
		return string(out), err
	}
	create := []string{"init", "deploy,cm", "widgets.v1.example.com", "--cluster", "prod", "--kubeconfig", plane(t).KubeconfigFile(), "-o", file}
	if out, err := run(append(create[:2:2], "--cluster", "prod")...); err == nil || !strings.Contains(out, "to look up deploy") {
		t.Errorf("without a cluster: %s", out)
	}
	create[2] = "sts.apps"
	if out, err := run(create...); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if out, err := run("validate", "--config", file); err != nil {
		t.Errorf("%v %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "      - apps/v1/deployments\n      - v1/configmaps\n      - apps/v1/statefulsets\n") {
		t.Errorf("got %s %v", text, err)
	}
	if out, err := run(create...); err == nil || !strings.Contains(out, "exists") {
		t.Errorf("again: %v %s", err, out)
	}
}
