package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/consume"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedAPIComesBack switches an API off, and on again: its objects come back in the versions that they had, which those of a CRD do not.
// Their sequences are behind those of the deletions that were inferred meanwhile, so that a table has the objects. One kubeferry
// runs all the while; one is killed once the deletions are sent, perhaps before it has committed that.
func TestExtendedAPIComesBack(t *testing.T) {
	disturbing(t)
	server, namespace := plane(t), newNamespace(t, "apigone")
	hooks := map[string]*webhooktest.Receiver{}
	run := func(name string) (e *exporter, again func() *exporter) {
		initial, never := webhooktest.Start(t), webhooktest.Start(t)
		hooks[name+", snapshot: initial"], hooks[name+", snapshot: never"] = initial, never
		file := writeConfig(t, t.TempDir(), fmt.Sprintf(`
stateDir: %q
sources:
  - {name: initial, resources: [autoscaling/v2/horizontalpodautoscalers], namespaces: {include: [%[2]s]}}
  - {name: never, resources: [autoscaling/v2/horizontalpodautoscalers], namespaces: {include: [%[2]s]}, snapshot: never}
pipelines: [{name: initial, sources: [initial], sink: initial}, {name: never, sources: [never], sink: never}]
sinks: [{name: initial, webhook: {url: %q}}, {name: never, webhook: {url: %q}}]
`, t.TempDir(), namespace, initial.URL(), never.URL()))
		start := func() *exporter { return runExporter(t, server.KubeconfigFile(), file) }
		return start(), start
	}
	runs, _ := run("runs")
	killed, again := run("killed")
	runs.WaitReady()
	killed.WaitReady()

	exist := map[string]string{}
	expect := func(what string, want map[string]string) {
		t.Helper()
		for name, hook := range hooks {
			eventually(t, 10*wide, what+" in the table: "+name, func() error { // that an API is gone takes minutes to confirm
				table := consume.NewTable()
				for _, m := range hook.Accepted() {
					records, err := consume.Decode(nil, m.Body)
					if err != nil {
						t.Fatal(err)
					}
					table.Apply(&records[0])
				}
				got := map[string]string{}
				for _, r := range table.All() {
					got[r.UID()] = r.ResourceVersion()
				}
				if !maps.Equal(got, want) {
					return fmt.Errorf("it has %v, want %v", got, want)
				}
				return nil
			})
		}
	}
	scalers := objectsIn(t, server.Config(), schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}, namespace)
	for _, name := range []string{"changed", "same"} {
		target := map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
		created := scalers.Create(name, map[string]any{"spec": map[string]any{"maxReplicas": 2, "scaleTargetRef": target}})
		exist[string(created.GetUID())] = created.GetResourceVersion()
	}
	expect("what was created", exist)
	runs.WaitSettled(wide)
	killed.WaitSettled(wide)

	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		if err := server.RestartAPIServer(context.Background()); err != nil { // the next test has the API
			t.Error(err)
		}
	})
	if err := server.RestartAPIServer(t.Context(), "--runtime-config=autoscaling/v1=false,autoscaling/v2=false"); err != nil {
		t.Fatal(err)
	}
	expect("nothing", nil)
	killed.Kill()
	if err := server.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	killed = again()
	expect("what is back", exist)
	changed := scalers.Patch("changed", map[string]any{"spec": map[string]any{"maxReplicas": 3}})
	exist[string(changed.GetUID())] = changed.GetResourceVersion()
	expect("what was changed", exist)
	runs.WaitWaiting(wide, 0)
	killed.WaitWaiting(wide, 0) // what it received depends on when it was killed
}
