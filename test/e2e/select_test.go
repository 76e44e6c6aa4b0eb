package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestSelectedNamespacesAndResources selects namespaces by a label and resources by wildcards. A namespace gets the label, a CRD comes, kubeferry
// is killed under load, one namespace loses the label, and the other one is deleted. Nothing is missing, and no other watch is disturbed.
func TestSelectedNamespacesAndResources(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	if err := load.RemoveWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	label := unique("team")
	first, second, other := newNamespace(t, "first"), newNamespace(t, "second"), newNamespace(t, "other")
	spaces := objectsIn(t, config, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "")
	setLabel := func(namespace string, value any) {
		spaces.Patch(namespace, map[string]any{"metadata": map[string]any{"labels": map[string]any{label: value}}})
	}
	setLabel(first, "yes")
	inFirst, inSecond, inOther := objectsIn(t, config, configMaps, first), objectsIn(t, config, configMaps, second), objectsIn(t, config, configMaps, other)
	inFirst.Create("one", data("1"))
	inSecond.Create("two", data("1"))
	inOther.Create("three", data("1"))
	hook := webhooktest.Start(t)
	text := fmt.Sprintf(`
stateDir: %q
sources:
  - name: s
    resources: ["*.example.com", "apps/*", v1/configmaps]
    exclude: [apps/v1/replicasets, controllerrevisions.apps]
    namespaces: {selector: %s=yes}
pipelines: [{name: p, sink: hook, onLeave: deleted}]
sinks: [{name: hook, webhook: {url: %q, timeout: 60s}}]
`, t.TempDir(), label, hook.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	read := hookReader(t, hook, cloudEvents)
	wait(t, read, "one", oracle.Added)
	apps := []string{"apps/v1/daemonsets", "apps/v1/deployments", "apps/v1/statefulsets"}
	watching := func(namespace string, resources ...string) {
		t.Helper()
		slices.Sort(resources)
		eventually(t, 2*wide, "the watches in "+namespace, func() error {
			var got []string
			for _, w := range e.Status().Watches {
				if w.Namespace == namespace {
					got = append(got, w.Resource)
					if w.State != "watching" {
						return fmt.Errorf("%s is %s: %s", w.Resource, w.State, w.Error)
					}
				}
			}
			if slices.Sort(got); !slices.Equal(got, resources) {
				return fmt.Errorf("got %q, want %q", got, resources)
			}
			return nil
		})
	}
	watching(first, append(slices.Clone(apps), "v1/configmaps")...)

	setLabel(second, "yes")
	wait(t, read, "two", oracle.Added)
	if err := load.InstallWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	everything := append(slices.Clone(apps), "v1/configmaps", "example.com/v1/widgets")
	watching(first, slices.Clone(everything)...)
	watching(second, slices.Clone(everything)...)

	kinds := []load.Resource{load.Deployments(), load.ConfigMaps(), load.Widgets()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{first, second}})
	watchedFirst := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{first}})
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{first, second}, Seed: 45, Prefix: "load"})
	more(t, read, 50)
	e.Kill()
	e = startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	more(t, read, 50)
	all := running.End()
	t.Log(expectAll(t, watched, all, read, oracle.CompareOptions{}))
	expectState(t, config, read(), load.GVRs(kinds), first, second)
	for name, want := range map[string][]string{"one": {"ADDED snapshot"}, "two": {"ADDED snapshot"}, "three": nil} {
		if got := of(read(), name); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}

	setLabel(second, nil)
	watching(second) // none
	watching(first, slices.Clone(everything)...)
	inSecond.Patch("two", data("2"))
	if got := countOf(read(), "two", oracle.Deleted); got != 1 {
		t.Errorf("%d DELETED of an object whose namespace does not match any more, want 1", got)
	}
	eventually(t, wide, "the mark of what left", func() error {
		var marks []string
		for _, record := range hook.Marks() {
			r, err := oracle.ParseCloudEvent(record.Body)
			if err != nil {
				return err
			}
			if r.Namespace == second && r.Resource == configMaps && r.Count == 0 && r.Complete {
				return nil
			}
			marks = append(marks, fmt.Sprintf("%s in %s: %d, complete %v", r.Resource, r.Namespace, r.Count, r.Complete))
		}
		return fmt.Errorf("got %q", marks)
	})

	if err := load.RemoveNamespace(t.Context(), config, first); err != nil {
		t.Fatal(err)
	}
	watching(first) // none
	t.Log(expectAll(t, watchedFirst, &load.Result{}, func() []oracle.Record {
		return slices.DeleteFunc(slices.Clone(read()), func(r oracle.Record) bool { return r.Namespace != first })
	}, oracle.CompareOptions{}))
	e.WaitSettled(wide)
	for _, r := range read() {
		if r.Namespace == other || r.Name == "two" && r.Type == oracle.Modified || strings.HasPrefix(r.Resource.Resource, "replicasets") {
			t.Errorf("%s is not selected", r.ID)
		}
		if r.Type == oracle.Gap && r.Reason != "lost" {
			t.Errorf("a gap record: %+v", r)
		}
		if r.Type == oracle.Deleted && r.Namespace == first && r.Inferred {
			t.Errorf("%s is inferred: it was seen", r.ID)
		}
	}
	e.Stop()
}

// countOf counts the records of an object that have a type.
func countOf(records []oracle.Record, name, typ string) (count int) {
	for _, r := range records {
		if r.Name == name && r.Type == typ {
			count++
		}
	}
	return count
}

// TestExtendedWildcardTakesAnotherVersion takes all resources of a group. A CRD stops serving the version that is watched, and serves another one:
// behind a gap record comes what exists in that, and the mark of an empty snapshot tells tables to drop the first.
func TestExtendedWildcardTakesAnotherVersion(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	group := unique("versions") + ".test"
	alpha := schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: "gizmos"}
	one := alpha.GroupResource().WithVersion("v1")
	version := func(name string, served bool) map[string]any {
		return map[string]any{
			"name": name, "served": served, "storage": served,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
		}
	}
	crds := objectsIn(t, config, schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, "")
	crd := crds.Create("gizmos."+group, map[string]any{"spec": map[string]any{
		"group": group, "scope": "Namespaced", "names": map[string]any{"plural": "gizmos", "singular": "gizmo", "kind": "Gizmo"},
		"versions": []any{version("v1alpha1", true)},
	}})
	namespace, hook := newNamespace(t, "versions"), webhooktest.Start(t)
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: ["*.%s"], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q}}]
`, t.TempDir(), group, namespace, hook.URL()))
	read := hookReader(t, hook, cloudEvents)
	watches := func(want schema.GroupVersionResource) {
		t.Helper()
		eventually(t, 2*wide, "the watch of "+want.String(), func() error {
			var got []string
			for _, w := range e.Status().Watches {
				if w.Namespace == namespace {
					got = append(got, w.Resource+" "+w.State)
				}
			}
			if name := group + "/" + want.Version + "/gizmos watching"; !slices.Equal(got, []string{name}) {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
	}
	watches(alpha)
	created := objectsIn(t, config, alpha, namespace).Create("g", map[string]any{"spec": map[string]any{"size": 1}})
	wait(t, read, "g", oracle.Added)

	crds.Patch(crd.GetName(), map[string]any{"spec": map[string]any{"versions": []any{version("v1", true), version("v1alpha1", false)}}})
	watches(one)
	objectsIn(t, config, one, namespace).Patch("g", map[string]any{"spec": map[string]any{"size": 2}})
	eventually(t, wide, "the object in the other version", func() error {
		var got []string
		for _, r := range read() {
			if r.Resource == one && (r.Type == oracle.Gap || r.UID == string(created.GetUID())) {
				got = append(got, r.Type)
			}
		}
		if slices.Sort(got); !slices.Equal(got, []string{oracle.Added, oracle.Gap, oracle.Modified}) {
			return fmt.Errorf("got %q", got)
		}
		for _, record := range hook.Marks() {
			if r, err := oracle.ParseCloudEvent(record.Body); err != nil || r.Resource == alpha && r.Count == 0 && r.Complete {
				return err
			}
		}
		return fmt.Errorf("no mark of %s among %d", alpha, len(hook.Marks()))
	})
	crds.Delete(crd.GetName())
	e.Stop()
}
