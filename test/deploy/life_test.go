package deploy_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/oracle"
)

// contents are what an object of a resource needs to exist.
var contents = map[string]struct {
	kind, namespace string
	content         map[string]any
}{
	"v1/configmaps": {"ConfigMap", "shop", map[string]any{"data": map[string]any{"key": "value"}}},
	"v1/secrets":    {"Secret", "shop", nil},
	"v1/nodes":      {"Node", "", nil},
	"v1/services": {"Service", "shop", map[string]any{"spec": map[string]any{
		"clusterIP": "None", "selector": labels, "ports": []any{map[string]any{"port": int64(80)}},
	}}},
	"v1/events": {"Event", "shop", map[string]any{
		"type": "Warning", "reason": "Tested", "message": "a warning",
		"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web"},
	}},
	"apps/v1/deployments": {"Deployment", "shop", map[string]any{"spec": map[string]any{
		"selector": map[string]any{"matchLabels": labels}, "template": template,
	}}},
	"apps/v1/statefulsets": {"StatefulSet", "shop", map[string]any{"spec": map[string]any{
		"selector": map[string]any{"matchLabels": labels}, "template": template, "serviceName": "web",
	}}},
	"apps/v1/daemonsets": {"DaemonSet", "shop", map[string]any{"spec": map[string]any{
		"selector": map[string]any{"matchLabels": labels}, "template": template,
	}}},
	"example.com/v1/widgets": {"Widget", "team-a", map[string]any{"spec": map[string]any{"size": int64(1)}}},
}

var (
	labels   = map[string]any{"app": "web"}
	template = map[string]any{
		"metadata": map[string]any{"labels": labels},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "app", "image": "app"}}},
	}
)

// live creates an object of the resource, changes it and deletes it, and returns the keys of the three changes.
func live(ctx context.Context, t *testing.T, cluster *rest.Config, resource schema.GroupVersionResource) []string {
	t.Helper()
	name := delta.ResourceName(resource)
	wanted, ok := contents[name]
	if !ok {
		t.Fatalf("the test does not know how to make one of %s", name)
	}
	client, err := dynamic.NewForConfig(cluster)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: maps.Clone(wanted.content)}
	if object.Object == nil {
		object.Object = map[string]any{}
	}
	object.SetGroupVersionKind(resource.GroupVersion().WithKind(wanted.kind))
	object.SetName("test-" + resource.Resource)
	object.SetNamespace(wanted.namespace)

	objects := client.Resource(resource).Namespace(wanted.namespace)
	made, err := objects.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create one of %s: %v", name, err)
	}
	changed, err := objects.Patch(ctx, made.GetName(), types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"changed":"yes"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("change one of %s: %v", name, err)
	}
	if err := objects.Delete(ctx, made.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatalf("delete one of %s: %v", name, err)
	}
	return []string{
		fmt.Sprintf("%s %s %s ADDED", name, made.GetUID(), made.GetResourceVersion()),
		fmt.Sprintf("%s %s %s MODIFIED", name, made.GetUID(), changed.GetResourceVersion()),
		fmt.Sprintf("%s %s DELETED", name, made.GetUID()), // its resource version is the server's secret
	}
}

// live is live for each resource that the manifests' configuration watches.
func (m *manifests) live(t *testing.T, plane *controlplane.ControlPlane) (wanted []string) {
	t.Helper()
	for _, source := range m.loaded.Sources {
		for _, resource := range source.Resources {
			wanted = append(wanted, live(t.Context(), t, plane.Config(), resource)...)
		}
	}
	return wanted
}

// keys are those of records, as live returns them.
func keys(t *testing.T, bodies [][]byte) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, body := range bodies {
		r, err := oracle.ParseCloudEvent(body)
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("%s %s %s %s", delta.ResourceName(r.Resource), r.UID, r.ResourceVersion, r.Type)
		if r.Type == oracle.Deleted {
			key = fmt.Sprintf("%s %s %s", delta.ResourceName(r.Resource), r.UID, r.Type)
		}
		found[key] = true
	}
	return found
}

// awaitAll reads until every wanted change is there.
func awaitAll(t *testing.T, read func(ctx context.Context) [][]byte, wanted []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		found := keys(t, read(ctx))
		missing := slices.DeleteFunc(slices.Clone(wanted), func(key string) bool { return found[key] })
		if len(missing) == 0 {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("not delivered:\n%s", strings.Join(missing, "\n"))
		}
	}
}
