package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestRightsTakenAway takes the right to one of two resources away under a load, while its watch runs, and gives it back;
// then once more, with the exporter killed and started without the right. What happened meanwhile arrives as it
// happened, and the other watch goes on.
func TestRightsTakenAway(t *testing.T) {
	t.Parallel()
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
	text := fmt.Sprintf("stateDir: %q\n", t.TempDir()) +
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
	lasting(t, commitInterval) // a killed exporter goes on from a position, not from its snapshot

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
