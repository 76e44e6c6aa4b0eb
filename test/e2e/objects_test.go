package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
)

// wide is how long a test waits for what usually takes well under a second.
const wide = 20 * time.Second

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	events     = schema.GroupVersionResource{Version: "v1", Resource: "events"}
)

// unique makes a name that no other test, and no other run of this one, has.
func unique(prefix string) string {
	return prefix + "-" + strings.ToLower(rand.Text()[:6])
}

// newNamespace creates a namespace with a name of its own.
func newNamespace(tb testing.TB, prefix string) string {
	tb.Helper()
	name := unique(prefix)
	if err := load.CreateNamespaces(tb.Context(), plane(tb).Config(), name); err != nil {
		tb.Fatal(err)
	}
	return name
}

// objects writes objects of one resource in one namespace.
type objects struct {
	tb     testing.TB
	client dynamic.ResourceInterface
	gvr    schema.GroupVersionResource
}

func objectsIn(tb testing.TB, config *rest.Config, gvr schema.GroupVersionResource, namespace string) *objects {
	tb.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		tb.Fatal(err)
	}
	return &objects{tb: tb, client: client.Resource(gvr).Namespace(namespace), gvr: gvr}
}

// Create makes an object of fields beside its name.
func (o *objects) Create(name string, fields map[string]any) *unstructured.Unstructured {
	o.tb.Helper()
	kinds := map[string]string{
		"configmaps": "ConfigMap", "secrets": "Secret", "events": "Event", "widgets": "Widget",
		"roles": "Role", "rolebindings": "RoleBinding", "clusterroles": "ClusterRole", "clusterrolebindings": "ClusterRoleBinding",
		"pods": "Pod", "nodes": "Node", "deployments": "Deployment", "customresourcedefinitions": "CustomResourceDefinition", "gizmos": "Gizmo",
	}
	object := &unstructured.Unstructured{Object: map[string]any{}}
	for key, value := range fields {
		object.Object[key] = value
	}
	object.SetAPIVersion(o.gvr.GroupVersion().String())
	object.SetKind(kinds[o.gvr.Resource])
	object.SetName(name)
	created, err := o.client.Create(o.tb.Context(), object, metav1.CreateOptions{})
	if err != nil {
		o.tb.Fatalf("create %s: %v", name, err)
	}
	return created
}

// Patch merges fields into an object.
func (o *objects) Patch(name string, fields map[string]any) *unstructured.Unstructured {
	o.tb.Helper()
	patch, err := json.Marshal(fields)
	if err != nil {
		o.tb.Fatal(err)
	}
	var patched *unstructured.Unstructured
	err = patiently(o.tb.Context(), func(ctx context.Context) (err error) {
		patched, err = o.client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err != nil {
		o.tb.Fatalf("patch %s: %v", name, err)
	}
	return patched
}

// Delete deletes an object.
func (o *objects) Delete(name string) {
	o.tb.Helper()
	if err := o.client.Delete(o.tb.Context(), name, metav1.DeleteOptions{}); err != nil {
		o.tb.Fatalf("delete %s: %v", name, err)
	}
}

// data is the content of a ConfigMap.
func data(value string) map[string]any {
	return map[string]any{"data": map[string]any{"value": value}}
}

// noise is text of n characters that snappy cannot make smaller.
func noise(n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(rand.Text())
	}
	return b.String()[:n]
}

// startOracle watches resources in namespaces until the test ends.
func startOracle(tb testing.TB, config *rest.Config, opts oracle.Options) *oracle.Oracle {
	tb.Helper()
	opts.Cluster = clusterName
	o, err := oracle.Start(tb.Context(), config, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(o.Stop)
	return o
}

// runLoad changes objects until the operations are used up.
func runLoad(tb testing.TB, config *rest.Config, opts load.Options) *load.Result {
	tb.Helper()
	result, err := load.Run(tb.Context(), config, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return result
}

// loading is a load in the background.
type loading struct {
	tb     testing.TB
	stop   func()
	result chan *load.Result
}

// startLoad changes objects, at a moderate rate unless opts say otherwise, until End or the end of the test.
func startLoad(tb testing.TB, config *rest.Config, opts load.Options) *loading {
	tb.Helper()
	until := make(chan struct{})
	opts.Until = until
	if opts.Rate == 0 {
		opts.Rate = 100
	}
	l := &loading{tb: tb, stop: sync.OnceFunc(func() { close(until) }), result: make(chan *load.Result, 1)}
	go func() {
		result, err := load.Run(tb.Context(), config, opts)
		if err != nil {
			tb.Error(err)
		}
		l.result <- result
		close(l.result)
	}()
	tb.Cleanup(func() {
		l.stop()
		for range l.result { // nobody writes when the test is over
		}
	})
	return l
}

// End ends the load and returns what it did.
func (l *loading) End() *load.Result {
	l.tb.Helper()
	l.stop()
	return <-l.result
}

// expectAll waits until the oracle, which began before the load, has seen all of it and nothing is missing.
func expectAll(tb testing.TB, o *oracle.Oracle, load *load.Result, read reader, opts oracle.CompareOptions) *oracle.Report {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 6*wide) // a pipeline may have a fault's backlog to send, record by record
	defer cancel()
	if err := o.WaitCaughtUp(ctx, load.UIDs...); err != nil {
		tb.Fatal(err)
	}
	report, err := o.WaitDelivered(ctx, read, opts)
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return report
}

// expectState compares what exists with what the records lead to, for whoever goes by their sequence.
func expectState(tb testing.TB, config *rest.Config, records []oracle.Record, gvrs []schema.GroupVersionResource, namespaces ...string) {
	tb.Helper()
	var got, want []string
	type key struct {
		gvr             schema.GroupVersionResource
		namespace, name string
	}
	state, latest := map[key]oracle.Record{}, map[key]uint64{}
	for _, r := range records {
		k := key{r.Resource, r.Namespace, r.Name}
		older := r.Sequence < latest[k]
		latest[k] = max(latest[k], r.Sequence)
		switch {
		case r.Type == oracle.Gap, older:
		case r.Type == oracle.Deleted:
			if state[k].UID == r.UID {
				delete(state, k)
			}
		default:
			state[k] = r
		}
	}
	for k, r := range state {
		got = append(got, fmt.Sprintf("%s %s/%s %s %s", k.gvr.Resource, k.namespace, k.name, r.UID, r.ResourceVersion))
	}
	for _, gvr := range gvrs {
		for _, namespace := range namespaces {
			list, err := objectsIn(tb, config, gvr, namespace).client.List(tb.Context(), metav1.ListOptions{})
			if err != nil {
				tb.Fatal(err)
			}
			for _, item := range list.Items {
				want = append(want, fmt.Sprintf("%s %s/%s %s %s", gvr.Resource, namespace, item.GetName(), item.GetUID(), item.GetResourceVersion()))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		tb.Errorf("the records lead to %d objects, %d exist:\n got %q\nwant %q", len(got), len(want), got, want)
	}
}
