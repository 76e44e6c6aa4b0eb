package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestFiveMistakes gets five messages, each with its line and path, and no more.
func TestFiveMistakes(t *testing.T) {
	beside(t)
	file := filepath.Join(t.TempDir(), "bad.yaml")
	text := `cluster: test
sources:
  - name: s
    resources: [apps/v1/deployments, apps/v1/]
    labelSelector: "app in ("
pipelines:
  - name: p
    sink: audit
    formt: json
    retry: {initial: soon}
sinks:
  - name: out
    stdout: {}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"validate", "run"} {
		output, code := runToEnd(t, command, "--config", file)
		if code != 2 {
			t.Errorf("%s: exit code %d, want 2", command, code)
		}
		messages := strings.Count(output, file+":")
		for _, want := range []string{
			":4: sources[0].resources[1]", ":5: sources[0].labelSelector", ":8: pipelines[0].sink", ":9: pipelines[0].formt", ":10: pipelines[0].retry.initial",
		} {
			if !strings.Contains(output, want) {
				t.Errorf("%s: no message for %s", command, want)
			}
		}
		if messages-strings.Count(output, "warning:") != 5 {
			t.Errorf("%s: %d messages, want 5", command, messages)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", command, output)
		}
	}
}

// TestCommandLine: unknown commands, files and contexts end with exit code 2.
func TestCommandLine(t *testing.T) {
	beside(t)
	good := writeConfig(t, t.TempDir(), `
sources: [{name: s, resources: [v1/pods]}]
pipelines: [{name: p, sink: out}]
sinks: [{name: out, stdout: {}}]
`)
	taken := webhooktest.Start(t)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"run"}, 2, "/etc/kubeferry/kubeferry.yaml: cannot be read"},
		{[]string{"rn"}, 2, "rn"},
		{[]string{"run", "--config", good, "--kubeconfig", "/nowhere/kubeconfig"}, 2, "/nowhere/kubeconfig"},
		{[]string{"run", "--config", good, "--kubeconfig", plane(t).KubeconfigFile(), "--context", "nope"}, 2, "nope"},
		{[]string{"run", "--config", "/nowhere/file.yaml"}, 2, "/nowhere/file.yaml"},
		{[]string{"validate", "--config", good}, 0, "valid"},
		{[]string{"version"}, 0, "kubeferry"},
	} {
		output, code := runToEnd(t, tt.args...)
		if code != tt.code || !strings.Contains(output, tt.says) {
			t.Errorf("%q: exit code %d, want %d, and\n%s", tt.args, code, tt.code, output)
		}
	}

	t.Run("the address is taken", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "taken.yaml")
		text := strings.ReplaceAll(read(t, good), "127.0.0.1:0", strings.TrimPrefix(taken.URL(), "http://"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		output, code := runToEnd(t, "run", "--config", file, "--kubeconfig", plane(t).KubeconfigFile())
		if code != 1 || !strings.Contains(output, "in use") {
			t.Errorf("exit code %d and\n%s", code, output)
		}
	})
}

// TestClusterComesLate starts kubeferry before its API server.
func TestClusterComesLate(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "away")
	objects := objectsIn(t, config, configMaps, namespace)
	objects.Create("a", data("1"))
	proxy, kubeconfig := proxyOf(t, config)
	hook := webhooktest.Start(t)
	e := startExporter(t, kubeconfig, hookConfig("[v1/configmaps]", "{include: ["+namespace+"]}", hook.URL()))
	e.WaitLogged(wide, "the watch failed", "refused", "configmaps")
	if code, _ := e.Get("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d without a cluster", code)
	}
	if code, body := e.Get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if s := e.Status(); len(s.Watches) != 1 || s.Watches[0].State != "failing" || !strings.Contains(s.Watches[0].Error, "refused") {
		t.Errorf("/status: %+v", s)
	}
	objects.Create("b", data("1"))
	proxy.Come()
	read := hookReader(t, hook, cloudEvents)
	wait(t, read, "a", oracle.Added)
	wait(t, read, "b", oracle.Added)
	e.WaitReady()
	// What it is between two failures is logged too.
	if n, missing := len(e.Logged("the watch failed")), len(e.Logged("does not exist yet")); n > 1+missing {
		t.Errorf("the log says %d times that the watch failed, and %d times that there is nothing to watch", n, missing)
	}
}

// TestForbiddenResource names what is missing for each resource, and serves the others.
func TestForbiddenResource(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "forbidden")
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	grantWatch(t, config, namespace, "exporter")()
	hook := webhooktest.Start(t)
	e := startExporter(t, writeKubeconfig(t, account), fmt.Sprintf(`
sources:
  - {name: mine, resources: [v1/configmaps, apps/v1/deployments], namespaces: {include: [%s]}}
  - {name: all, resources: [v1/nodes]}
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q}}]
`, namespace, hook.URL()))
	deployments := e.WaitLogged(wide, "forbidden", "apps/v1/deployments", namespace)
	if want := `Role in namespace ` + namespace + `: {apiGroups: ["apps"], resources: ["deployments"], verbs: [list, watch]}`; deployments["rule"] != want {
		t.Errorf("the rule is %q, want %q", deployments["rule"], want)
	}
	nodes := e.WaitLogged(wide, "forbidden", "v1/nodes")
	if want := `ClusterRole: {apiGroups: [""], resources: ["nodes"], verbs: [list, watch]}`; nodes["rule"] != want {
		t.Errorf("the rule is %q, want %q", nodes["rule"], want)
	}
	for _, line := range []map[string]any{deployments, nodes} {
		if text := fmt.Sprint(line["err"]); !strings.Contains(text, "cannot watch") && !strings.Contains(text, "cannot list") {
			t.Errorf("no verb in %q", text)
		}
	}
	objectsIn(t, config, configMaps, namespace).Create("a", data("1"))
	wait(t, hookReader(t, hook, cloudEvents), "a", oracle.Added)
}
