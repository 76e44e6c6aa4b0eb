package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestRightsTakenAway takes the right to one of two resources away under a load, while its watch runs, and gives it back;
// then once more, with kubeferry killed and started without the right. What happened meanwhile arrives as it
// happened, and the other watch goes on.
func TestRightsTakenAway(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "rights")
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	grants := map[string]*objects{}
	for resource, group := range map[string]string{"configmaps": "", "deployments": "apps"} {
		grants[resource] = grantOne(t, config, namespace, group, resource)
	}
	proxy, kubeconfig := proxyOf(t, account)
	proxy.Come()
	kinds := []load.Resource{load.ConfigMaps(), load.Deployments()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	dir := t.TempDir()
	text := fmt.Sprintf("stateDir: %q\n", dir) +
		hookConfig("[v1/configmaps, apps/v1/deployments]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	e := startExporter(t, kubeconfig, text)
	e.WaitReady()
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Seed: 32, Rate: 50})
	read := hookReader(t, hook, cloudEvents)
	of := func(resource string) reader {
		return func() (found []oracle.Record) {
			for _, r := range read() {
				if r.Resource.Resource == resource {
					found = append(found, r)
				}
			}
			return found
		}
	}
	forbidden := func() {
		t.Helper()
		eventually(t, wide, "the watch is forbidden", func() error {
			for _, w := range e.Status().Watches {
				switch {
				case w.Resource != "v1/configmaps":
				case strings.Contains(w.Error, "forbidden"):
					return nil
				case w.State == "watching":
					proxy.Cut() // a watch that is open outlives its right
				}
			}
			return fmt.Errorf("%+v", e.Status().Watches)
		})
	}
	more(t, of("configmaps"), 20)
	watchCommits(t, dir).Wait(2) // a killed kubeferry goes on from a position, not from its snapshot

	for _, kill := range []bool{false, true} {
		grants["configmaps"].Delete("configmaps")
		forbidden()
		if kill {
			e.Kill()
			e = startExporter(t, kubeconfig, text)
			forbidden()
		}
		more(t, of("deployments"), 50)
		bind(grants["configmaps"], namespace, "configmaps")
		more(t, of("configmaps"), 50)
		e.WaitReady()
	}
	done := running.End()
	report := expectAll(t, watched, done, read, oracle.CompareOptions{})
	t.Log(report)
	if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 0 {
		t.Errorf("%v gaps", gaps)
	}
}

// TestRevokedRightShows takes the right to one of two resources away while its watch goes on, which the API server does not
// end. The metric, the alert and the body of the probe follow, and the other watch stays ready. With the right the next opening makes it
// ready again.
func TestRevokedRightShows(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "revoked")
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	grantOne(t, config, namespace, "", "configmaps")
	grants := grantOne(t, config, namespace, "", "events")
	proxy, kubeconfig := proxyOf(t, account)
	proxy.Come()
	hook := webhooktest.Start(t)
	e := startExporter(t, kubeconfig, fmt.Sprintf("stateDir: %q\n", t.TempDir())+
		hookConfig("[v1/configmaps, v1/events]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL()))
	e.WaitReady()
	server := newPrometheus(t, documentedAlerts(t))
	if fired := server.Hold(e.Metrics(), 10*time.Minute); len(fired) > 0 {
		t.Errorf("%q fired before anything happened", fired)
	}
	restarts := e.Metrics().sum("kubeferry_watch_restarts_total")
	expect := func(ready float64, probe int) {
		t.Helper()
		eventually(t, 2*wide, "the probe and the metric", func() error {
			m := e.Metrics()
			events, others := m.sum("kubeferry_watch_ready", "resource=v1/events"), m.sum("kubeferry_watch_ready", "resource=v1/configmaps")
			if code, body := e.Get("/readyz"); events != ready || others != 1 || code != probe {
				return fmt.Errorf("events ready %v, configmaps %v, /readyz %d: %s", events, others, code, body)
			}
			return nil
		})
	}
	grants.Delete("events")
	revoked := time.Now()
	expect(0, http.StatusOK) // else whoever owns a namespace could stop a rollout
	if _, body := e.Get("/readyz"); !strings.Contains(body, "v1/events") || strings.Contains(body, "configmaps") {
		t.Errorf("/readyz: %s", body)
	}
	if took := time.Since(revoked); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	alert := fmt.Sprintf(`KubeferryWatchNotReady{namespace=%q, resource="v1/events", source="s"}`, namespace)
	if fired := server.Hold(e.Metrics(), 10*time.Minute); !slices.Equal(fired, []string{alert}) {
		t.Errorf("%q fired without the right, want %s", fired, alert)
	}
	e.WaitLogged(wide, "forbidden to watch", "Role in namespace "+namespace, "events")
	objectsIn(t, config, events, namespace).Create("late", map[string]any{
		"reason": "Test", "type": "Normal", "involvedObject": map[string]any{"kind": "Pod", "namespace": namespace, "name": "none"},
	})
	read := hookReader(t, hook, cloudEvents)
	eventually(t, wide, "the open watch goes on", func() error {
		if len(read()) == 0 {
			return errors.New("no record")
		}
		return nil
	})
	if again := e.Metrics().sum("kubeferry_watch_restarts_total"); again != restarts {
		t.Errorf("%v watches were opened again", again-restarts)
	}
	bind(grants, namespace, "events")
	proxy.Cut()
	expect(1, http.StatusOK)
	if firing := server.Scrape(e.Metrics()); len(firing) > 0 {
		t.Errorf("%q fires with the right", firing)
	}
}

// grantOne lets the ServiceAccount exporter list and watch one resource in its namespace, by a role and a binding of the
// resource's name, and returns the bindings.
func grantOne(tb testing.TB, config *rest.Config, namespace, group, resource string) *objects {
	tb.Helper()
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	objectsIn(tb, config, rbac.WithResource("roles"), namespace).Create(resource, map[string]any{
		"rules": []any{map[string]any{
			"apiGroups": []any{group}, "resources": []any{resource}, "verbs": []any{"list", "watch"},
		}},
	})
	bindings := objectsIn(tb, config, rbac.WithResource("rolebindings"), namespace)
	bind(bindings, namespace, resource)
	return bindings
}

// bind gives the role of a resource to the ServiceAccount exporter.
func bind(bindings *objects, namespace, resource string) {
	bindings.tb.Helper()
	bindings.Create(resource, map[string]any{
		"roleRef":  map[string]any{"apiGroup": bindings.gvr.Group, "kind": "Role", "name": resource},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": "exporter"}},
	})
}
