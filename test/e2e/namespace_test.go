package e2e_test

import (
	"fmt"
	"testing"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestNamespaceRemoved removes a namespace with everything in it, as the namespace controller does: every DELETED
// arrives, as it happened, and the other watches go on.
func TestNamespaceRemoved(t *testing.T) {
	disturbing(t)
	for name, include := range map[string]string{"a watch for each": "%[1]s-stays, %[1]s-goes", "one watch": "'%s-*'"} {
		t.Run(name, func(t *testing.T) {
			config := plane(t).Config()
			if err := load.InstallWidgets(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			prefix := unique("remove")
			stays, goes := prefix+"-stays", prefix+"-goes"
			if err := load.CreateNamespaces(t.Context(), config, stays, goes); err != nil {
				t.Fatal(err)
			}
			kinds := load.All()
			hook, apart := webhooktest.Start(t), webhooktest.Start(t)
			watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{stays, goes}})
			e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
stateDir: %q
sources:
  - name: objects
    resources: [apps/v1/deployments, v1/configmaps, v1/events, example.com/v1/widgets]
    namespaces: {include: [%s]}
  - {name: namespaces, resources: [v1/namespaces], fieldSelector: metadata.name=%s}
pipelines:
  - {name: p, sources: [objects], sink: hook}
  - {name: n, sources: [namespaces], sink: namespaces}
sinks: # a busy machine is not to repeat anything
  - {name: hook, webhook: {url: %q, timeout: 60s}}
  - {name: namespaces, webhook: {url: %q, timeout: 60s}}
`, t.TempDir(), fmt.Sprintf(include, prefix), goes, hook.URL(), apart.URL()))
			e.WaitReady()
			there := runLoad(t, config, load.Options{
				Resources: kinds, Namespaces: []string{goes}, Objects: 80, Operations: 300, Seed: 30, Prefix: "goes",
			})
			if there.Live < 20 {
				t.Fatalf("only %d objects to remove", there.Live)
			}
			read := hookReader(t, hook, cloudEvents)
			running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{stays}, Seed: 31, Prefix: "stays"})
			more(t, read, 50)
			if err := load.RemoveNamespace(t.Context(), config, goes); err != nil {
				t.Fatal(err)
			}
			more(t, read, 50)
			all := running.End()
			all.UIDs = append(all.UIDs, there.UIDs...)
			report := expectAll(t, watched, all, read, oracle.CompareOptions{})
			t.Log(report)
			if len(report.Duplicates) > 0 {
				t.Errorf("repeated: %v", report.Duplicates)
			}
			deleted := 0
			for _, r := range read() {
				if r.Namespace == goes && r.Type == oracle.Deleted {
					deleted++
				}
			}
			if want := there.Deleted + there.Live; deleted != want {
				t.Errorf("%d DELETED in the namespace that went, want %d", deleted, want)
			}
			wait(t, hookReader(t, apart, cloudEvents), goes, oracle.Deleted)
			expectState(t, config, read(), load.GVRs(kinds), stays, goes)
			if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 0 {
				t.Errorf("%v gaps", gaps)
			}
			for _, w := range e.Status().Watches {
				if w.State != "watching" {
					t.Errorf("%s in %q: %s", w.Resource, w.Namespace, w.State)
				}
			}
		})
	}
}
