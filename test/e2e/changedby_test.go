package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestChangedBy changes a Deployment as programs and controllers do, each as a field manager of its own: the record of each change
// names that manager, and a filter selects by it.
func TestChangedBy(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "changedby")
	deployments := objectsIn(t, plane(t).Config(), schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, namespace).client
	hook, picked := webhooktest.Start(t), webhooktest.Start(t)
	startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [apps/v1/deployments], namespaces: {include: [%s]}}]
pipelines:
  - {name: p, sink: hook, format: json}
  - {name: picked, sink: picked, format: json, filters: [{expr: 'changedBy.exists(m, m.operation == "Apply")'}]}
sinks: [{name: hook, webhook: {url: %q}}, {name: picked, webhook: {url: %q}}]
`, namespace, hook.URL(), picked.URL())).WaitReady()

	type change struct {
		Type      string
		ChangedBy []struct{ Manager, Operation, Subresource, Time string }
		Object    struct {
			Metadata struct{ ManagedFields []any }
		}
	}
	changes := func(r *webhooktest.Receiver) (all []change) {
		for _, record := range r.Accepted() {
			var c change
			if err := json.Unmarshal(record.Body, &c); err != nil {
				t.Fatalf("%s: %v", record.Body, err)
			}
			if c.Type != "SNAPSHOT" {
				all = append(all, c)
			}
		}
		return all
	}
	written := 0
	// check waits for the record of the change that was just made: so no two share a second unless they are to.
	check := func(err error, kind string, want ...string) (names string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		written++
		eventually(t, wide, "a record of the change", func() error {
			if len(changes(hook)) < written {
				return errors.New("there is none")
			}
			return nil
		})
		c := changes(hook)[written-1]
		var got []string
		for _, m := range c.ChangedBy {
			got = append(got, m.Manager+" "+m.Operation+" "+m.Subresource)
		}
		names = strings.Join(got, ",")
		missing := len(want) > 0 && !strings.Contains(names, want[0])
		if c.Type != kind || missing || len(want) == 0 && len(got) > 0 || len(c.Object.Metadata.ManagedFields) > 0 {
			t.Errorf("got %s by %q, want %s by %q", c.Type, got, kind, want)
		}
		return names
	}
	ctx := t.Context()
	pod := map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}},
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web", "finalizers": []any{"example.com/hold"}},
		"spec": map[string]any{"replicas": int64(1), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}, "template": pod},
	}}
	_, err := deployments.Create(ctx, object, metav1.CreateOptions{FieldManager: "creator"})
	check(err, "ADDED", "creator Update ")
	_, err = deployments.Patch(ctx, "web", types.MergePatchType, []byte(`{"metadata":{"labels":{"edited":"yes"}}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	check(err, "MODIFIED", "kubectl-edit Update ")
	_, err = deployments.Patch(ctx, "web", types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"note":"applied by the client"}}}`),
		metav1.PatchOptions{FieldManager: "kubectl-client-side-apply"})
	check(err, "MODIFIED", "kubectl-client-side-apply Update ")
	eventually(t, wide, "two programs in one second", func() error {
		var names string
		for _, program := range []string{"first", "second"} {
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"%d"}}}`, program, written)
			_, err := deployments.Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{FieldManager: program})
			names = check(err, "MODIFIED", program+" Update ")
		}
		if !strings.Contains(names, "first Update ") {
			return errors.New("the second was in another second")
		}
		return nil
	})
	_, err = deployments.Patch(ctx, "web", types.ApplyPatchType,
		[]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","labels":{"applied":"yes"}}}`), metav1.PatchOptions{FieldManager: "applier"})
	check(err, "MODIFIED", "applier Apply ")
	observe := func() { // what exists, as a controller does
		t.Helper()
		seen, err := deployments.Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		patch := fmt.Appendf(nil, `{"status":{"observedGeneration":%d}}`, seen.GetGeneration())
		_, err = deployments.Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "controller"}, "status")
		check(err, "MODIFIED", "controller Update status")
	}
	applied := time.Now()
	eventually(t, wide, "another second", func() error { // else the applier is named with the controller
		if time.Now().Unix() == applied.Unix() {
			return errors.New("it is the same")
		}
		return nil
	})
	observe()
	// Kubernetes notes no time for the scale subresource.
	for _, scaler := range []string{"scaler", "other", "other"} {
		_, err = deployments.Patch(ctx, "web", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, written), metav1.PatchOptions{FieldManager: scaler}, "scale")
		check(err, "MODIFIED", scaler+" Update scale")
	}
	observe()
	_, err = deployments.Patch(ctx, "web", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{FieldManager: "finisher"})
	check(err, "MODIFIED", "") // what only removes fields leaves no entry, so the last one is named
	check(deployments.Delete(ctx, "web", metav1.DeleteOptions{}), "DELETED")
	eventually(t, wide, "the applied change in the other pipeline", func() error {
		for _, c := range changes(picked) {
			if len(c.ChangedBy) > 0 && strings.Contains(fmt.Sprint(c.ChangedBy), "Apply") {
				return nil
			}
		}
		return errors.New("it is not there")
	})
}
