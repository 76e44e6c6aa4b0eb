package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestEnrich reports Events about objects of several kinds and checks the metadata of those objects in the records. The
// kubeferry may read ConfigMaps, Nodes, Pods and Widgets, and no Secrets.
func TestEnrich(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	if err := load.InstallWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(t, "enrich")
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	grantEverywhere(t, config, namespace, "events", "configmaps", "nodes", "pods", "widgets")
	kubeconfig := t.TempDir() + "/kubeconfig"
	if err := controlplane.WriteKubeconfig(kubeconfig, account); err != nil {
		t.Fatal(err)
	}
	all, web := webhooktest.Start(t), webhooktest.Start(t)
	e := startExporter(t, kubeconfig, fmt.Sprintf(`
sources: [{name: s, resources: [v1/events], namespaces: {include: [%s, default]}}]
pipelines:
  - {name: all, sink: all, format: json, enrich: involvedObject, diff: jsonPatch}
  - name: web
    sink: web
    format: json
    enrich: involvedObject
    filters: [{expr: 'object.involvedObject.?labels["app"].orValue("") == "web"'}]
    transforms: [{set: {app: object.involvedObject.labels.app}}, {remove: [involvedObject]}]
sinks: [{name: all, webhook: {url: %q}}, {name: web, webhook: {url: %q}}]
enrichment: {resources: [v1/configmaps, v1/nodes, v1/pods, example.com/v1/widgets, v1/secrets, nowhere.example.com/v1/nonesuches]}
`, namespace, all.URL(), web.URL()))
	e.WaitReady()
	r := &reporter{t: t, namespace: namespace, events: objectsIn(t, config, events, namespace), hook: all}

	metadata := func(app string) map[string]any {
		return map[string]any{
			"labels": map[string]any{"app": app},
			"annotations": map[string]any{
				"note": "kept", "kubectl.kubernetes.io/last-applied-configuration": `{"data":"planted"}`,
			},
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}},
		}
	}
	configs := objectsIn(t, config, configMaps, namespace)
	first := configs.Create("one", map[string]any{"metadata": metadata("web")})
	pod := objectsIn(t, config, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, namespace).Create("one", map[string]any{
		"metadata": metadata("web"),
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "none"}}},
	})
	widget := objectsIn(t, config, load.Widgets().GVR, namespace).Create("one", map[string]any{"metadata": metadata("web"), "spec": map[string]any{"size": 1}})
	secret := objectsIn(t, config, secrets, namespace).Create("one", map[string]any{"metadata": metadata("web")})
	widget.SetAPIVersion("example.com/v9") // not served, but its kind is in another version
	nobody := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "nowhere.example.com/v1", "kind": "Nonesuch"}}
	nobody.SetName("one")
	nobody.SetUID("4f0c1e10-1267-466d-aa8d-59513e0e4c45")

	for _, object := range []*unstructured.Unstructured{first, pod, widget} {
		event, about := r.until(object, func(about map[string]any) bool { return about["metadataKnown"] == nil })
		if got := fmt.Sprint(about["labels"], about["annotations"], about["ownerReferences"]); got !=
			"map[app:web] map[note:kept] [map[apiVersion:v1 kind:Node name:n uid:u]]" || about["name"] != "one" {
			t.Errorf("%s: %v", object.GetKind(), about)
		}
		eventually(t, wide, "the filter passes it, and the transforms see it", func() error {
			for _, record := range recordsOf(t, web) {
				if record.Object["reason"] == event && record.Object["app"] == "web" && record.Object["involvedObject"] == nil {
					return nil
				}
			}
			return errors.New("it is not there")
		})
	}
	// What cannot be known is marked, and arrives nevertheless.
	for _, object := range []*unstructured.Unstructured{secret, nobody} {
		for range 3 {
			if _, about := r.report(object); about["metadataKnown"] != false || about["labels"] != nil {
				t.Errorf("%s: %v", object.GetKind(), about)
			}
		}
	}
	e.WaitLogged(wide, "forbidden to watch", "enrichment", "v1/secrets", "verbs: [list, watch]")
	e.WaitLogged(wide, "does not exist yet", "enrichment", "nowhere.example.com/v1/nonesuches")
	for _, w := range e.Status().Enrichment {
		if want := w.Resource != "v1/secrets" && w.Resource != "nowhere.example.com/v1/nonesuches"; (w.State == "watching") != want {
			t.Errorf("%s is %s: %s", w.Resource, w.State, w.Error)
		}
	}

	// A difference is one of the Event, also when the object changed meanwhile.
	event, _ := r.report(first)
	configs.Patch("one", map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "shop"}}})
	r.until(first, func(about map[string]any) bool { return fmt.Sprint(about["labels"]) == "map[app:shop]" })
	r.events.Patch(event, map[string]any{"count": 2})
	modified := r.wait(event, "MODIFIED")
	if about := aboutOf(modified); fmt.Sprint(about["labels"]) != "map[app:shop]" || !strings.Contains(string(modified.Patch), `"/count"`) ||
		strings.Contains(string(modified.Patch), "involvedObject") {
		t.Errorf("%v, with the patch %s", about, modified.Patch)
	}

	// The end of an object, and a successor of its name.
	configs.Delete("one")
	if _, about := r.report(first); fmt.Sprint(about["labels"]) != "map[app:shop]" {
		t.Errorf("after the deletion: %v", about)
	}
	second := configs.Create("one", map[string]any{"metadata": metadata("next")})
	r.until(second, func(about map[string]any) bool { return fmt.Sprint(about["labels"]) == "map[app:next]" })
	if _, about := r.report(first); about["metadataKnown"] != false {
		t.Errorf("the successor's metadata is taken for that of the object before: %v", about)
	}

	// An Event with a time may name an object of any namespace, and gets nothing of it; nor of what has no namespace.
	victim := newNamespace(t, "enrich-victim")
	foreign := objectsIn(t, config, configMaps, victim).Create("one", map[string]any{"metadata": metadata("foreign")})
	forged := objectsIn(t, config, schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}, namespace)
	node := objectsIn(t, config, schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "").Create("enrich", map[string]any{"metadata": metadata("foreign")})
	nodeNamed := node.DeepCopy()
	nodeNamed.SetUID(types.UID(node.GetName())) // as the kubelet does
	kubelet := &reporter{t: t, number: 1000, namespace: "default", events: objectsIn(t, config, events, "default"), hook: all}
	kubelet.until(nodeNamed, func(about map[string]any) bool { return about["metadataKnown"] == nil })
	for i, about := range []*unstructured.Unstructured{foreign, node, nodeNamed} {
		involvedNamespace := about.GetNamespace()
		if involvedNamespace == "" {
			involvedNamespace = "default"
		}
		event := fmt.Sprintf("forged-%d", i)
		forged.Create(event, map[string]any{
			"reason": event, "type": "Normal", "action": "Forge", "eventTime": "2026-11-22T06:00:00.000000Z",
			"reportingController": "example.com/forger", "reportingInstance": "forger",
			"regarding": map[string]any{
				"apiVersion": "v1", "kind": about.GetKind(), "namespace": involvedNamespace, "name": about.GetName(), "uid": string(about.GetUID()),
			},
		})
		if about := aboutOf(r.wait(event, "ADDED")); about["metadataKnown"] != false || about["labels"] != nil {
			t.Errorf("a forged Event gets %v", about)
		}
	}

	m := e.Metrics()
	hits, misses := m.sum("kubeferry_enrichment_lookups_total", "pipeline=all", "result=hit"), m.sum("kubeferry_enrichment_lookups_total", "pipeline=all", "result=miss")
	if bytes := m.sum("kubeferry_enrichment_bytes"); hits < 5 || misses < 7 || bytes <= 0 || bytes > 32<<20 {
		t.Errorf("%v hits, %v misses, %v bytes", hits, misses, bytes)
	}
	for _, request := range all.Requests() {
		for _, part := range request.Records {
			if strings.Contains(string(part.Body), "planted") {
				t.Fatalf("the last-applied annotation is in a record: %s", part.Body)
			}
		}
	}
}

// reporter writes Events.
type reporter struct {
	t         *testing.T
	namespace string
	events    *objects
	hook      *webhooktest.Receiver
	number    int
}

// report writes an Event about an object, with its name as its reason, and returns the metadata of the object in the record.
func (r *reporter) report(object *unstructured.Unstructured) (event string, about map[string]any) {
	r.t.Helper()
	r.number++
	event = fmt.Sprintf("event-%d", r.number)
	r.events.Create(event, map[string]any{
		"reason": event, "type": "Normal", "count": 1,
		"involvedObject": map[string]any{
			"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(), "namespace": r.namespace,
			"name": object.GetName(), "uid": string(object.GetUID()),
		},
	})
	return event, aboutOf(r.wait(event, "ADDED"))
}

// until writes Events about an object until a record has the wanted metadata.
func (r *reporter) until(object *unstructured.Unstructured, wanted func(about map[string]any) bool) (event string, about map[string]any) {
	r.t.Helper()
	eventually(r.t, 2*wide, "an Event about "+object.GetKind(), func() error {
		event, about = r.report(object)
		if !wanted(about) {
			return fmt.Errorf("the last says %v", about)
		}
		return nil
	})
	return event, about
}

func (r *reporter) wait(event, typ string) (found jsonRecord) {
	r.t.Helper()
	eventually(r.t, wide, typ+" of "+event, func() error {
		for _, record := range recordsOf(r.t, r.hook) {
			if record.Type == typ && record.Object["reason"] == event {
				found = record
				return nil
			}
		}
		return errors.New("it is not there")
	})
	return found
}

func aboutOf(record jsonRecord) map[string]any {
	about, _ := record.Object["involvedObject"].(map[string]any)
	return maps.Clone(about)
}

// jsonRecord is a record of the format json.
type jsonRecord struct {
	Type   string          `json:"type"`
	Object map[string]any  `json:"object"`
	Patch  json.RawMessage `json:"patch"`
}

func recordsOf(tb testing.TB, hook *webhooktest.Receiver) (records []jsonRecord) {
	tb.Helper()
	for _, request := range hook.Requests() {
		for _, part := range request.Records {
			var record jsonRecord
			if err := json.Unmarshal(part.Body, &record); err != nil {
				tb.Fatal(err)
			}
			records = append(records, record)
		}
	}
	return records
}

// grantEverywhere lets the ServiceAccount exporter of a namespace list and watch resources in all namespaces, by a
// role that has the namespace's name.
func grantEverywhere(tb testing.TB, config *rest.Config, namespace string, resources ...string) {
	tb.Helper()
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	var names []any
	for _, resource := range resources {
		names = append(names, resource)
	}
	objectsIn(tb, config, rbac.WithResource("clusterroles"), "").Create(namespace, map[string]any{
		"rules": []any{map[string]any{
			"apiGroups": []any{"*"}, "resources": names, "verbs": []any{"list", "watch"},
		}},
	})
	objectsIn(tb, config, rbac.WithResource("clusterrolebindings"), "").Create(namespace, map[string]any{
		"roleRef":  map[string]any{"apiGroup": rbac.Group, "kind": "ClusterRole", "name": namespace},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": "exporter"}},
	})
}
