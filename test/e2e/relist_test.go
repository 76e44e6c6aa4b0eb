package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// hookConfig is a source of resources in namespaces (a YAML flow mapping) that goes to one webhook.
func hookConfig(resources, namespaces, url string) string {
	return fmt.Sprintf(`
sources: [{name: s, resources: %s, namespaces: %s}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q}}]
`, resources, namespaces, url)
}

// TestAPIServerKilled kills the API server in the middle of a load, twice.
func TestAPIServerKilled(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "killed")
	kinds := []load.Resource{load.Deployments(), load.ConfigMaps(), load.Events()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	e := startExporter(t, plane(t).KubeconfigFile(), hookConfig("[apps/v1/deployments, v1/configmaps, v1/events]",
		fmt.Sprintf("{include: [%s*]}", namespace), hook.URL()))
	e.WaitReady()

	var restarts sync.WaitGroup
	restart := sync.OnceFunc(func() {
		restarts.Go(func() {
			for range 2 {
				if err := plane(t).RestartAPIServer(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	})
	done := runLoad(t, config, load.Options{
		Resources: kinds, Namespaces: []string{namespace}, Objects: 60, Operations: 600, Seed: 3,
		OnWrite: func(n int64) {
			if n > 200 {
				restart()
			}
		},
	})
	restarts.Wait()
	// Each watch reports its gap before what changes later.
	after := runLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 30, Operations: 30, Prefix: "after", Seed: 4})
	done.UIDs = append(done.UIDs, after.UIDs...)

	read := hookReader(t, hook, cloudEvents)
	// The oracle's watches are refused as well.
	allowed := oracle.CompareOptions{AllowGaps: true, AllowHoles: true}
	expectAll(t, watched, done, read, allowed)
	e.WaitSettled(wide) // a gap without differences may come after all that was due
	report := expectAll(t, watched, done, read, allowed)
	t.Log(report)
	if report.Gaps == 0 || e.Metrics().sum("kubeferry_watch_gaps_total") != float64(report.Gaps) {
		t.Errorf("got %d gaps, the metric says %v", report.Gaps, e.Metrics().sum("kubeferry_watch_gaps_total"))
	}
	e.WaitSettled(wide)
	expectState(t, config, read(), load.GVRs(kinds), namespace)
	if code, body := e.Get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
}

// TestGapThenDifferences takes history away while kubeferry is cut off: what it sends then is a gap, and
// the net difference.
func TestGapThenDifferences(t *testing.T) {
	disturbing(t)
	tests := []struct {
		name   string
		gvr    schema.GroupVersionResource
		forget func(t *testing.T)
	}{
		{"the API server was restarted", configMaps, func(t *testing.T) {
			if _, err := plane(t).CompactEtcd(within(t, wide)); err != nil {
				t.Fatal(err)
			}
			if err := plane(t).RestartAPIServer(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		{"etcd was compacted", events, func(t *testing.T) {
			if _, err := plane(t).CompactEtcd(within(t, wide)); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := plane(t).Config()
			namespace := newNamespace(t, "gap")
			fields := func(value string) map[string]any {
				if tt.gvr == events {
					return map[string]any{
						"message": value, "type": "Normal", "reason": "Test",
						"involvedObject": map[string]any{"kind": "Pod", "namespace": namespace, "name": "x"},
					}
				}
				return data(value)
			}
			objects := objectsIn(t, config, tt.gvr, namespace)
			old := map[string]string{}
			for _, name := range []string{"deleted", "recreated", "changed", "same"} {
				old[name] = string(objects.Create(name, fields("1")).GetUID())
			}
			proxy, kubeconfig := proxyOf(t, config)
			proxy.Come()
			hook := webhooktest.Start(t)
			e := startExporter(t, kubeconfig, hookConfig("[v1/"+tt.gvr.Resource+"]", "{include: ["+namespace+"]}", hook.URL()))
			read := hookReader(t, hook, cloudEvents)
			eventually(t, wide, "the snapshot", func() error {
				if n := len(read()); n != 4 {
					return fmt.Errorf("%d records", n)
				}
				return nil
			})
			expectMarks(t, hook, 1)
			e.WaitSettled(wide)

			proxy.Leave()
			left := serverVersion(t, config, tt.gvr)
			objects.Delete("deleted")
			objects.Delete("recreated")
			objects.Create("recreated", fields("2"))
			objects.Patch("changed", fields("2"))
			objects.Create("created", fields("2"))
			objects.Create("never-seen", fields("2"))
			objects.Delete("never-seen")
			tt.forget(t)
			back := serverVersion(t, config, tt.gvr)
			proxy.Come()

			wait(t, read, "created", oracle.Added)
			wait(t, read, "deleted", oracle.Deleted)
			e.WaitSettled(wide)
			objects.Patch("same", fields("3"))
			wait(t, read, "same", oracle.Modified)

			records := read()
			if gaps := gapsOf(records); len(gaps) != 1 || gaps[0].Namespace != namespace { // it holds back nothing
				t.Errorf("got the gaps %+v, want one", gaps)
			} else {
				expectRange(t, config, gaps[0], records[:4], left, back)
			}
			for name, want := range map[string][]string{
				"deleted":    {"ADDED snapshot", "DELETED inferred"},
				"recreated":  {"ADDED snapshot", "DELETED inferred", "ADDED inferred"},
				"changed":    {"ADDED snapshot", "MODIFIED inferred"},
				"created":    {"ADDED inferred"},
				"never-seen": nil,
				"same":       {"ADDED snapshot", "MODIFIED"},
			} {
				if got := of(records, name); !slices.Equal(got, want) {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
			for _, name := range []string{"deleted", "recreated"} {
				if gone, err := find(records, name, oracle.Deleted); err != nil || gone.UID != old[name] {
					t.Errorf("%s: DELETED has uid %s, want %s", name, gone.UID, old[name])
				}
			}
			if n := unknownFinalStates(hook); n != 2 {
				t.Errorf("%d records say finalStateUnknown, want 2", n)
			}
			expectState(t, config, records, []schema.GroupVersionResource{tt.gvr}, namespace)
		})
	}
}

func unknownFinalStates(hook *webhooktest.Receiver) int {
	n := 0
	for _, r := range hook.Accepted() {
		if strings.Contains(string(r.Body), `"finalStateUnknown":true`) {
			n++
		}
	}
	return n
}

// TestGapHoldsNothingBack refuses the gap, and nothing else: the differences arrive, and the gap once it is taken.
func TestGapHoldsNothingBack(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "gapfail")
	objects := objectsIn(t, config, configMaps, namespace)
	for n := range 20 {
		objects.Create(fmt.Sprintf("old-%d", n), data("1"))
	}
	proxy, kubeconfig := proxyOf(t, config)
	proxy.Come()
	hook := webhooktest.Start(t)
	e := startExporter(t, kubeconfig, hookConfig("[v1/configmaps]", "{include: ["+namespace+"]}", hook.URL()))
	read := hookReader(t, hook, cloudEvents)
	wait(t, read, "old-19", oracle.Added)
	e.WaitSettled(wide)
	before := len(read())

	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	objects.Patch("old-0", data("pending"))
	e.WaitSink(wide, "p", false)
	proxy.Leave()
	left := serverVersion(t, config, configMaps)
	for n := range 20 {
		objects.Delete(fmt.Sprintf("old-%d", n))
	}
	if err := plane(t).RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := serverVersion(t, config, configMaps)
	proxy.Come()
	eventually(t, wide, "the differences wait", func() error {
		if s := e.Status(); s.Pipelines[0].Waiting < 21 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	isGap := func(id string) bool { return strings.HasSuffix(id, "/GAP") }
	hook.Use(webhooktest.WhenID(isGap, webhooktest.Answer{Status: http.StatusInternalServerError}, webhooktest.Accept()))
	from := len(hook.Requests())
	wait(t, read, "old-0", oracle.Modified)
	eventually(t, wide, "the gap is refused a few times", func() error {
		refused := 0
		for _, request := range hook.Requests()[from:] {
			if isGap(request.Records[0].ID) {
				refused++
			}
		}
		if refused < 4 {
			return fmt.Errorf("%d times", refused)
		}
		return nil
	})
	for n := range 20 {
		wait(t, read, fmt.Sprintf("old-%d", n), oracle.Deleted)
	}
	hook.Use(webhooktest.Accept())
	eventually(t, wide, "the gap", func() error {
		if n := len(gapsOf(read())); n != 1 {
			return fmt.Errorf("%d gaps", n)
		}
		return nil
	})
	records := read()[before:]
	if len(records) != 22 {
		t.Errorf("%d records, want 22", len(records))
	}
	expectRange(t, config, gapsOf(records)[0], read()[:before], left, back)
}

// TestNothingIsInferredFromErrors takes rights and the API server away; what happened meanwhile then arrives as it happened.
func TestNothingIsInferredFromErrors(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "errors")
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	grant := grantWatch(t, config, namespace, "exporter")
	objects := objectsIn(t, config, configMaps, namespace)
	for _, name := range []string{"a", "b", "c", "d"} {
		objects.Create(name, data("1"))
	}
	proxy, kubeconfig := proxyOf(t, account)
	proxy.Come()
	hook := webhooktest.Start(t)
	e := startExporter(t, kubeconfig, hookConfig("[v1/configmaps]", "{include: ["+namespace+"]}", hook.URL()))

	// Forbidden from the start: the log names the missing right, and readiness waits.
	line := e.WaitLogged(wide, "forbidden", "configmaps", "watch", namespace)
	rule := fmt.Sprint(line["rule"])
	for _, part := range []string{"Role in namespace " + namespace, `apiGroups: [""]`, `resources: ["configmaps"]`, "list", "watch"} {
		if !strings.Contains(rule, part) {
			t.Errorf("the rule is %q, without %q", rule, part)
		}
	}
	if code, body := e.Get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "configmaps") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	binding := grant()
	read := hookReader(t, hook, cloudEvents)
	wait(t, read, "d", oracle.Added)
	e.WaitReady()

	t.Run("the right is taken away", func(t *testing.T) {
		binding.Delete("exporter")
		refused := e.Answered("403")
		eventually(t, wide, "requests are refused", func() error {
			proxy.Cut() // a watch that is open outlives its right
			if n := e.Answered("403"); n < refused+3 {
				return fmt.Errorf("%v refused, before %v", n, refused)
			}
			return nil
		})
		objects.Patch("a", data("2"))
		objects.Delete("b")
		if n := len(e.Logged("forbidden")); n != 2 {
			t.Errorf("%d lines say forbidden, want one for each time", n)
		}
		if code, body := e.Get("/readyz"); code != http.StatusOK || !strings.Contains(body, "forbidden") {
			t.Errorf("/readyz: %d %s", code, body)
		}
		grant()
		wait(t, read, "b", oracle.Deleted)
		wait(t, read, "a", oracle.Modified)
	})
	t.Run("the API server is away", func(t *testing.T) {
		failed := e.Answered("<error>")
		proxy.Leave()
		objects.Patch("c", data("2"))
		objects.Delete("d")
		e.WaitAnswered("<error>", failed+2)
		proxy.Come()
		wait(t, read, "d", oracle.Deleted)
		wait(t, read, "c", oracle.Modified)
	})
	e.WaitSettled(wide)
	records := read()
	for name, want := range map[string][]string{
		"a": {"ADDED snapshot", "MODIFIED"}, "b": {"ADDED snapshot", "DELETED"},
		"c": {"ADDED snapshot", "MODIFIED"}, "d": {"ADDED snapshot", "DELETED"},
	} {
		if got := of(records, name); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if len(records) != 8 {
		t.Errorf("%d records, want 8", len(records))
	}
}

// grantWatch returns a function that lets a ServiceAccount list and watch ConfigMaps in its namespace, and the role
// bindings to take that away again.
func grantWatch(tb testing.TB, config *rest.Config, namespace, account string) func() *objects {
	tb.Helper()
	return grantWatchTo(tb, config, namespace, namespace, account)
}

// grantWatchTo is grantWatch for a ServiceAccount of another namespace.
func grantWatchTo(tb testing.TB, config *rest.Config, namespace, home, account string) func() *objects {
	tb.Helper()
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	objectsIn(tb, config, rbac.WithResource("roles"), namespace).Create("exporter", map[string]any{
		"rules": []any{map[string]any{
			"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": []any{"list", "watch"},
		}},
	})
	bindings := objectsIn(tb, config, rbac.WithResource("rolebindings"), namespace)
	return func() *objects {
		bindings.Create("exporter", map[string]any{
			"roleRef":  map[string]any{"apiGroup": rbac.Group, "kind": "Role", "name": "exporter"},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": home, "name": account}},
		})
		return bindings
	}
}

// TestPagesOfAList reads more than a page.
func TestPagesOfAList(t *testing.T) {
	beside(t)
	old := controlplane.ForTest(t, controlplane.Options{APIServerFlags: []string{"--feature-gates=WatchList=false"}})
	config := old.Config()
	if err := load.CreateNamespaces(t.Context(), config, "pages"); err != nil {
		t.Fatal(err)
	}
	opts := load.Options{
		Resources: []load.Resource{load.ConfigMaps()}, Namespaces: []string{"pages"}, Objects: 3000, Operations: 1450, Concurrency: 8, Seed: 4,
	}
	runLoad(t, config, opts)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(opts.Resources), Namespaces: opts.Namespaces})
	hook := webhooktest.Start(t)
	e := startExporter(t, old.KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [pages]}}]
pipelines: [{name: p, sink: hook, format: json}]
sinks: [{name: hook, webhook: {url: %q, batch: {maxRecords: 50}}}]
`, hook.URL()))
	e.WaitReady()
	opts.Objects, opts.Operations, opts.Seed = 100, 200, 5
	done := runLoad(t, config, opts)

	read := hookReader(t, hook, plainJSON)
	report := expectAll(t, watched, done, read, oracle.CompareOptions{})
	t.Log(report)
	if report.Snapshots <= 1000 || len(report.Duplicates) > 0 {
		t.Errorf("want a snapshot of three pages without duplicates: %v", report)
	}
	expectState(t, config, read(), load.GVRs(opts.Resources), "pages")
}
