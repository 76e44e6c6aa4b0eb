package e2e_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestNamesOfResources runs a configuration with the names that kubectl takes. They are looked up once the API server is there; until then
// /status and an alert show that it is away. The state is that of the same resources in full: what was deleted between two runs arrives.
func TestNamesOfResources(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "names")
	maps := objectsIn(t, plane(t).Config(), configMaps, namespace)
	hook := webhooktest.Start(t)
	dir := t.TempDir()
	text := func(resources string) string {
		return fmt.Sprintf("stateDir: %q\n", dir) + hookConfig(resources, fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	}
	proxy, kubeconfig := proxyOf(t, plane(t).Config())
	e := startExporter(t, kubeconfig, text("[cm, deployments.apps]"))
	e.WaitLogged(wide, "waiting for the API server")
	if problems := e.Status().Problems; len(problems) != 1 || !strings.Contains(problems[0], "waiting for the API server") {
		t.Errorf("got the problems %q", problems)
	}
	notReady := func(resource string) string {
		return fmt.Sprintf(`KubeferryWatchNotReady{exported_namespace=%q, instance="i", job="kubeferry", namespace="kubeferry", resource=%q, source="s"}`, namespace, resource)
	}
	if got := newPrometheus(t, documentedAlerts(t)).Hold(scraped(e.Metrics(), "i"), 4*time.Minute); !slices.Equal(got, []string{notReady("cm"), notReady("deployments.apps")}) {
		t.Errorf("%q fire", got)
	}
	proxy.Come()
	e.WaitReady()
	e.WaitLogged(wide, "looked up the names of resources", "apps/v1/deployments v1/configmaps")
	maps.Create("a", data("1"))
	expectReceived(t, hook, "ADDED a") // the order over two objects is no promise
	maps.Create("b", data("1"))
	expectReceived(t, hook, "ADDED a", "ADDED b")
	e.WaitSettled(wide)
	e.Stop()
	maps.Delete("a")
	e = startExporter(t, kubeconfig, text("[v1/configmaps, apps/v1/deployments]"))
	e.WaitReady()
	expectReceived(t, hook, "ADDED a", "ADDED b", "DELETED a")
	e.WaitSettled(wide)
	e.Stop()
	maps.Delete("b")
	e = startExporter(t, kubeconfig, text("[configmap, deployments.v1.apps]"))
	e.WaitReady()
	expectReceived(t, hook, "ADDED a", "ADDED b", "DELETED a", "DELETED b")

	rights := func(resources string) string {
		t.Helper()
		file := writeConfig(t, t.TempDir(), text(resources))
		out, err := exec.CommandContext(within(t, 6*wide), raceBinary(t), "rbac", "--config", file, "--kubeconfig", plane(t).KubeconfigFile()).Output()
		if err != nil {
			t.Fatal(err)
		}
		_, rules, _ := bytes.Cut(out, []byte("\n"))
		return string(rules)
	}
	if short, full := rights("[cm, deploy]"), rights("[v1/configmaps, apps/v1/deployments]"); short != full || !strings.Contains(full, "configmaps") {
		t.Errorf("got rights %s\nwant %s", short, full)
	}
	for resources, want := range map[string]string{
		"[events]":            `source "s": "events" stands for v1/events and for events.k8s.io/v1/events: name one of them`,
		"[cm, v1/configmaps]": `pipeline "p" takes v1/configmaps twice, under two names`,
	} {
		for _, command := range [][]string{{"run"}, {"validate", "--connect"}} {
			file := writeConfig(t, t.TempDir(), strings.ReplaceAll(text(resources), dir, filepath.Join(t.TempDir(), "state")))
			command := append(command, "--config", file, "--kubeconfig", plane(t).KubeconfigFile())
			out, err := exec.CommandContext(within(t, 6*wide), raceBinary(t), command...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("%s %s: %v %s", command[0], resources, err, out)
			}
		}
	}
}
