package e2e_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestCRDComesAndGoes begins without the CRD, lets it come, go and come again, and watches something else all the
// while. With `snapshot: never` the objects of a CRD that appears are news all the same: they did not exist at the
// start.
func TestCRDComesAndGoes(t *testing.T) {
	disturbing(t)
	for _, snapshot := range []string{"initial", "never"} {
		t.Run("snapshot "+snapshot, func(t *testing.T) { crdComesAndGoes(t, snapshot) })
	}
}

func crdComesAndGoes(t *testing.T, snapshot string) {
	config := plane(t).Config()
	if err := load.RemoveWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(t, "crd")
	hook := webhooktest.Start(t)
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [example.com/v1/widgets, v1/configmaps], namespaces: {include: ["%s*"]}, snapshot: %s}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q}}]
`, namespace, snapshot, hook.URL()))
	read := hookReader(t, hook, cloudEvents)
	others := objectsIn(t, config, configMaps, namespace)

	e.WaitReady() // without the CRD
	e.WaitLogged(wide, "does not exist yet", "widgets")
	e.WaitAnswered("404", 3) // several attempts
	// An API server that is too busy to answer makes it another state for a while, which is logged once too.
	failed := slices.DeleteFunc(e.Logged("the watch failed"), func(line map[string]any) bool { return line["resource"] != "example.com/v1/widgets" })
	if n := len(e.Logged("does not exist yet")); n > 1+len(failed) {
		t.Errorf("%d lines say that it does not exist, want 1, and %d say that it failed", n, len(failed))
	}
	others.Create("one", data("1"))
	wait(t, read, "one", oracle.Added)
	if state := watchState(e, "example.com/v1/widgets"); state != "missing" {
		t.Errorf("the state is %q", state)
	}
	// Nothing is to be expected of it, so its silence is no alert.
	for name := range e.Metrics() {
		if strings.HasPrefix(name, "kubeferry_watch_last_activity_seconds{") && strings.Contains(name, "widgets") {
			t.Error(name)
		}
	}

	if err := load.InstallWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	widgets := objectsIn(t, config, load.Widgets().GVR, namespace)
	created := []*unstructured.Unstructured{
		widgets.Create("first", map[string]any{"spec": map[string]any{"size": 1}}),
		widgets.Create("second", map[string]any{"spec": map[string]any{"size": 1}}),
	}
	for _, w := range created {
		wait(t, read, w.GetName(), oracle.Added)
	}
	eventually(t, wide, "the state", func() error {
		if state := watchState(e, "example.com/v1/widgets"); state != "watching" {
			return fmt.Errorf("it is %q", state)
		}
		return nil
	})
	widgets.Patch("second", map[string]any{"spec": map[string]any{"size": 2}})
	wait(t, read, "second", oracle.Modified)

	if err := load.RemoveWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for _, w := range created {
		if gone := wait(t, read, w.GetName(), oracle.Deleted); gone.UID != string(w.GetUID()) {
			t.Errorf("%s: DELETED of %s, want %s", w.GetName(), gone.UID, w.GetUID())
		}
	}
	others.Patch("one", data("2"))
	wait(t, read, "one", oracle.Modified)

	if err := load.InstallWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	again := widgets.Create("first", map[string]any{"spec": map[string]any{"size": 3}})
	eventually(t, wide, "the new object", func() error {
		for _, r := range read() {
			if r.UID == string(again.GetUID()) && r.Type == oracle.Added {
				return nil
			}
		}
		return fmt.Errorf("%q", of(read(), "first"))
	})
	others.Delete("one")
	wait(t, read, "one", oracle.Deleted)
	e.WaitSettled(wide)

	records := read()
	types := func(name string) (types []string) {
		for _, r := range records {
			if r.Name == name {
				types = append(types, r.Type)
			}
		}
		return types
	}
	for name, want := range map[string][]string{
		"one": {"ADDED", "MODIFIED", "DELETED"}, "first": {"ADDED", "DELETED", "ADDED"},
		"second": {"ADDED", "MODIFIED", "DELETED"},
	} {
		if got := types(name); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	for _, r := range records {
		if r.Snapshot && snapshot == "never" {
			t.Errorf("a snapshot: %s", r.ID)
		}
	}
}

// TestExtendedCRDComesWhileCutOff has the CRD and an object of it come while kubeferry, which has found that there was none,
// does not look. `snapshot: never` is about what existed before, and this did not.
func TestExtendedCRDComesWhileCutOff(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	if err := load.RemoveWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(t, "crdcut")
	proxy, kubeconfig := proxyOf(t, config)
	proxy.Come()
	hook := webhooktest.Start(t)
	e := startExporter(t, kubeconfig, fmt.Sprintf(`
sources: [{name: s, resources: [example.com/v1/widgets], namespaces: {include: [%s]}, snapshot: never}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q}}]
`, namespace, hook.URL()))
	read := hookReader(t, hook, cloudEvents)
	widgets := objectsIn(t, config, load.Widgets().GVR, namespace)
	e.WaitLogged(wide, "does not exist yet")
	var uids []string
	for round := range 2 { // there never was one; there was one, and it went
		proxy.Leave()
		if err := load.InstallWidgets(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		uids = append(uids, string(widgets.Create("w", map[string]any{"spec": map[string]any{"size": round}}).GetUID()))
		proxy.Come()
		eventually(t, wide, "the object is announced", func() error {
			records := slices.DeleteFunc(slices.Clone(read()), func(r oracle.Record) bool { return r.Type == oracle.Gap })
			if n := len(records); n != 2*round+1 || records[n-1].Type != oracle.Added || records[n-1].UID != uids[round] {
				return fmt.Errorf("%q, state %s", of(records, "w"), watchState(e, "example.com/v1/widgets"))
			}
			return nil
		})
		if round == 0 {
			if err := load.RemoveWidgets(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			waitMissing(t, e)
		}
	}
}

// TestExtendedCRDGoneUnderLoad takes the CRD away, once while kubeferry runs and once while it is killed, and gives it back,
// with a load on what is left all the while: every object of the CRD has its DELETED, what came after is there, and the
// other watch misses nothing.
func TestExtendedCRDGoneUnderLoad(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	if err := load.RemoveWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(t, "crdload")
	others := []load.Resource{load.ConfigMaps()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(others), Namespaces: []string{namespace}})
	hook := webhooktest.Start(t)
	text := fmt.Sprintf("stateDir: %q\n", t.TempDir()) +
		hookConfig("[example.com/v1/widgets, v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	background := startLoad(t, config, load.Options{Resources: others, Namespaces: []string{namespace}, Rate: 50, Seed: 60})

	read := hookReader(t, hook, cloudEvents)
	for round, away := range []bool{false, true} {
		if err := load.InstallWidgets(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		eventually(t, wide, "the CRD is watched", func() error { // what is deleted before that has no history
			if state := watchState(e, "example.com/v1/widgets"); state != "watching" {
				return fmt.Errorf("state %s", state)
			}
			return nil
		})
		widgets := startOracle(t, config, oracle.Options{Resources: []schema.GroupVersionResource{load.Widgets().GVR}, Namespaces: []string{namespace}})
		done := runLoad(t, config, load.Options{
			Resources: []load.Resource{load.Widgets()}, Namespaces: []string{namespace}, Operations: 150, Seed: uint64(61 + round),
		})
		ofRound := func() []oracle.Record { return withUIDs(read(), done.UIDs) }
		t.Log(expectAll(t, widgets, done, ofRound, oracle.CompareOptions{}))
		widgets.Stop()
		if away {
			e.Kill()
		}
		if err := load.RemoveWidgets(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		if away {
			e = startExporter(t, plane(t).KubeconfigFile(), text)
			e.WaitReady()
		}
		eventually(t, wide, "every object of the CRD is gone", func() error {
			first, last := map[string]uint64{}, map[string]string{}
			for _, r := range ofRound() {
				if last[r.UID] == "" {
					first[r.UID] = r.Sequence
				}
				last[r.UID] = r.Type
			}
			from := uint64(math.MaxUint64)
			for _, g := range gapsOf(read()) {
				if away && g.To == "" {
					from, _ = strconv.ParseUint(g.From, 10, 64)
				}
			}
			for _, uid := range done.UIDs {
				if last[uid] != oracle.Deleted && first[uid] <= from { // what began behind the gap cannot be known
					return fmt.Errorf("of %s the last is %q, the first %d", uid, last[uid], first[uid])
				}
			}
			return nil
		})
		if !away { // else the next round may take the old state for that of the new CRD
			waitMissing(t, e)
		}
	}
	all := background.End()
	ofOthers := func() []oracle.Record { return withUIDs(read(), all.UIDs) }
	t.Log(expectAll(t, watched, all, ofOthers, oracle.CompareOptions{}))
	// A killed kubeferry's last commit may be older than the last changes of a resource that is gone now; and a CRD that is
	// back before its watch was opened again has no history.
	gaps := gapsOf(read())
	if n := len(gaps); n == 0 || n > 2 || gaps[n-1].To != "" {
		t.Errorf("got gaps %+v", gaps)
	}
	for _, g := range gaps {
		if g.Resource != load.Widgets().GVR {
			t.Errorf("a gap of another resource: %+v", g)
		}
	}
}

func gapsOf(records []oracle.Record) []oracle.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r oracle.Record) bool { return r.Type != oracle.Gap })
}

// withUIDs are the records of some objects.
func withUIDs(records []oracle.Record, uids []string) []oracle.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r oracle.Record) bool { return !slices.Contains(uids, r.UID) })
}

// waitMissing waits until kubeferry has noticed that there are no widgets.
func waitMissing(t *testing.T, e *exporter) {
	t.Helper()
	eventually(t, wide, "the resource is gone", func() error {
		if state := watchState(e, "example.com/v1/widgets"); state != "missing" {
			return fmt.Errorf("state %s", state)
		}
		return nil
	})
}

func watchState(e *exporter, resource string) string {
	for _, w := range e.Status().Watches {
		if w.Resource == resource {
			return w.State
		}
	}
	return ""
}
