package e2e_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestNamespaces selects namespaces in every way there is, and looks at who gets what.
func TestNamespaces(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	id := unique("x")
	names := []string{"shop-" + id, "team-a-" + id, "team-b-" + id, "team-secret-" + id, "other-" + id}
	if err := load.CreateNamespaces(t.Context(), config, names...); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, namespaces string
		want             []string // prefixes
		watches          int
	}{
		{"globs", fmt.Sprintf(`{include: ["shop-%[1]s", "team-*-%[1]s"], exclude: ["*secret*"]}`, id), []string{"shop", "team-a", "team-b"}, 1},
		{"plain names", fmt.Sprintf(`{include: [shop-%[1]s, other-%[1]s]}`, id), []string{"other", "shop"}, 2},
		{"plain exclusion", fmt.Sprintf(`{include: ["*-%[1]s"], exclude: [shop-%[1]s, "team-?-%[1]s"]}`, id), []string{"other", "team-secret"}, 1},
	}
	hook := webhooktest.Start(t)
	var sources, pipelines strings.Builder
	for i, tt := range tests {
		fmt.Fprintf(&sources, "  - {name: s%d, resources: [v1/configmaps], namespaces: %s}\n", i, tt.namespaces)
		fmt.Fprintf(&pipelines, "  - {name: p%d, sources: [s%d], sink: h%d}\n", i, i, i)
	}
	var sinks strings.Builder
	for i := range tests {
		fmt.Fprintf(&sinks, "  - {name: h%d, webhook: {url: %q}}\n", i, fmt.Sprintf("%s/%d", hook.URL(), i))
	}
	fmt.Fprintf(&pipelines, "  - {name: filtered, sources: [s0], filters: [{namespaces: {exclude: [\"team-*\"]}}, {types: [ADDED]}], sink: hf}\n")
	fmt.Fprintf(&sinks, "  - {name: hf, webhook: {url: %q}}\n", hook.URL()+"/f")
	for _, namespace := range names {
		objectsIn(t, config, configMaps, namespace).Create("before", data("1"))
	}
	e := startExporter(t, plane(t).KubeconfigFile(),
		"sources:\n"+sources.String()+"pipelines:\n"+pipelines.String()+"sinks:\n"+sinks.String())
	e.WaitReady()
	for _, namespace := range names {
		objects := objectsIn(t, config, configMaps, namespace)
		objects.Create("after", data("1"))
		objects.Patch("after", data("2"))
	}

	arrived := func(path string) (namespaces []string) {
		for _, request := range hook.Requests() {
			if request.Path != path {
				continue
			}
			r, err := oracle.ParseCloudEvent(request.Body)
			if err != nil {
				t.Error(err)
			}
			namespaces = append(namespaces, strings.TrimSuffix(r.Namespace, "-"+id)+" "+r.Name+" "+r.Type)
		}
		slices.Sort(namespaces)
		return namespaces
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var want []string
			for _, namespace := range tt.want {
				want = append(want, namespace+" after ADDED", namespace+" after MODIFIED", namespace+" before ADDED")
			}
			eventually(t, wide, "records", func() error {
				if got := arrived(fmt.Sprintf("/%d", i)); !slices.Equal(got, want) {
					return fmt.Errorf("got %q, want %q", got, want)
				}
				return nil
			})
			watches := 0
			for _, w := range e.Status().Watches {
				if w.Source == fmt.Sprintf("s%d", i) {
					watches++
				}
			}
			if watches != tt.watches {
				t.Errorf("%d watches, want %d", watches, tt.watches)
			}
		})
	}
	e.WaitWaiting(wide, 0)
	if got, want := arrived("/f"), []string{"shop after ADDED", "shop before ADDED"}; !slices.Equal(got, want) {
		t.Errorf("filtered: got %q, want %q", got, want)
	}
	if got := e.Metrics().sum("kubeferry_deltas_filtered_total", "pipeline=filtered"); got != 7 {
		t.Errorf("%v deltas filtered, want 7", got)
	}
	if m := e.Metrics(); m.sum("kubeferry_watch_ready", "source=s0") < 1 || m.sum("kubeferry_watch_ready", "namespace=shop-"+id) < 1 || m.sum("kubeferry_build_info") != 1 {
		t.Errorf("no metric of a source, of a namespace or of the build: %v", m)
	}
}

// TestSelectors lets objects enter and leave what the API server selects.
func TestSelectors(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "select")
	objects := objectsIn(t, config, configMaps, namespace)
	labelled := func(app string) map[string]any {
		return map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": app}}}
	}
	objects.Create("web", map[string]any{"metadata": labelled("web")["metadata"]})
	objects.Create("db", map[string]any{"metadata": labelled("db")["metadata"]})
	byLabel, byField := webhooktest.Start(t), webhooktest.Start(t)
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources:
  - {name: label, resources: [v1/configmaps], namespaces: {include: [%[1]s]}, labelSelector: "app in (web, cache)"}
  - {name: field, resources: [v1/configmaps], namespaces: {include: ["%[1]s*"]}, fieldSelector: "metadata.name=db"}
pipelines:
  - {name: label, sources: [label], sink: label}
  - {name: field, sources: [field], sink: field}
sinks:
  - {name: label, webhook: {url: %q}}
  - {name: field, webhook: {url: %q}}
`, namespace, byLabel.URL(), byField.URL()))
	e.WaitReady()
	objects.Patch("web", labelled("cache"))
	objects.Patch("web", labelled("db")) // leaves
	objects.Patch("web", data("x"))      // out of sight
	objects.Patch("web", labelled("web"))
	objects.Patch("db", data("x"))
	objects.Delete("web")
	objects.Delete("db")

	labels, fields := hookReader(t, byLabel, cloudEvents), hookReader(t, byField, cloudEvents)
	for _, want := range []struct {
		read    reader
		object  string
		records []string
	}{
		{labels, "web", []string{"ADDED snapshot", "MODIFIED", "DELETED", "ADDED", "DELETED"}},
		{labels, "db", nil},
		{fields, "web", nil},
		{fields, "db", []string{"ADDED snapshot", "MODIFIED", "DELETED"}},
	} {
		eventually(t, wide, want.object, func() error {
			if got := of(want.read(), want.object); !slices.Equal(got, want.records) {
				return fmt.Errorf("got %q, want %q", got, want.records)
			}
			return nil
		})
	}
}

// TestSnapshotNever: what exists at the start is not sent, and its later changes are.
func TestSnapshotNever(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "never")
	objects := objectsIn(t, config, configMaps, namespace)
	for _, name := range []string{"a", "b", "c"} {
		objects.Create(name, data("1"))
	}
	hook := webhooktest.Start(t)
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}, snapshot: never}]
pipelines: [{name: p, sink: hook, format: raw}]
sinks: [{name: hook, webhook: {url: %q}}]
`, namespace, hook.URL()))
	e.WaitReady()
	objects.Patch("a", data("2"))
	objects.Delete("b")
	objects.Create("d", data("1"))
	read := hookReader(t, hook, raw)
	wait(t, read, "d", oracle.Added)
	e.WaitSettled(wide)
	var got []string
	for _, r := range read() {
		got = append(got, r.Name+" "+r.Type)
	}
	slices.Sort(got)
	if want := []string{"a MODIFIED", "b DELETED", "d ADDED"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestClusterScopedBesideNamespaces does not watch what the namespaces would never take effect on, and is not ready.
func TestClusterScopedBesideNamespaces(t *testing.T) {
	beside(t)
	e := startExporter(t, plane(t).KubeconfigFile(), `
sources:
  - {name: mixed, resources: [v1/pods, v1/nodes], namespaces: {include: ["team-*"]}}
pipelines: [{name: p, sink: out}]
sinks: [{name: out, stdout: {}}]
`)
	line := e.WaitLogged(wide, "the resource is not watched")
	if text := fmt.Sprint(line); !strings.Contains(text, "v1/nodes") || !strings.Contains(text, "cluster-scoped") || !strings.Contains(text, "mixed") {
		t.Errorf("got %v", line)
	}
	if code, body := e.Get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "v1/nodes: refused") {
		t.Errorf("readyz: got %d %s", code, body)
	}
}

// runToEnd runs the program to its end, which must be near.
func runToEnd(tb testing.TB, args ...string) (output string, code int) {
	tb.Helper()
	binary := raceBinary(tb)
	return runProgram(tb, binary, args...)
}

// runProgram runs any program to its end.
func runProgram(tb testing.TB, path string, args ...string) (output string, code int) {
	tb.Helper()
	cmd := exec.CommandContext(within(tb, 6*wide), path, args...) // some send or read all that there is
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		tb.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
