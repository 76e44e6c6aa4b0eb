package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedTenantOfOneNamespace attacks with nothing but the token of a ServiceAccount that may write in one namespace: with objects of
// many managers, that hang in their deletion, are recreated at once, come in floods, hold odd JSON, or are expensive in a filter's
// expression. Every change arrives, in order, and those of another namespace within 5 s.
func TestExtendedTenantOfOneNamespace(t *testing.T) {
	config := plane(t).Config()
	if err := load.InstallWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	bad, good := newNamespace(t, "bad"), newNamespace(t, "good")
	everything := webhooktest.Start(t)
	picky, alone := startTenantHook(t, "none"), startTenantHook(t, "none")
	watched := startOracle(t, config, oracle.Options{
		Resources: []schema.GroupVersionResource{configMaps, load.Widgets().GVR}, Namespaces: []string{bad, good},
	})
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources:
  - {name: both, resources: [v1/configmaps, example.com/v1/widgets], namespaces: {include: ["%[1]s*", "%[2]s*"]}} # one watch
  - {name: good, resources: [v1/configmaps], namespaces: {include: [%[2]s]}}
pipelines:
  - {name: everything, sources: [both], sink: everything, diff: jsonPatch}
  - {name: picky, sources: [both], sink: picky, diff: jsonPatch, filters: [{expr: %[6]q}]}
  - {name: alone, sources: [good], sink: alone}
sinks:
  - {name: everything, webhook: {url: %[3]q}}
  - {name: picky, webhook: {url: %[4]q}}
  - {name: alone, webhook: {url: %[5]q}}
`, bad, good, everything.URL(), picky.server.URL, alone.server.URL,
		`!has(object.data) || object.data.all(k, object.data[k].split(",").all(a, object.data[k].split(",").all(b, a != b + "x")))`), plain(t))
	e.WaitReady()

	a := attackerIn(t, bad)
	var attacking sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for _, attack := range []func(context.Context){a.manageByMany, a.hang, a.recreate, a.flood, a.writeOdd, a.writeExpensive} {
		attacking.Go(func() { attack(ctx) })
	}
	written := writeMany(t, objectsIn(t, config, configMaps, good), "good", 4*goodRate, goodRate, data("taken"))
	eventually(t, wide, "changes are too expensive, else it is no attack", func() error { // of a busy machine fewer in the same time
		if dead := e.Metrics().sum("kubeferry_records_dead_total", "pipeline=picky"); dead < 20 {
			return fmt.Errorf("%v are", dead)
		}
		return nil
	})
	cancel()
	attacking.Wait()
	expectSoon(t, e, written, alone, map[string]*tenantHook{"picky": picky})
	var uids []string
	for _, w := range written {
		uids = append(uids, strings.Split(w.id, "/")[1])
	}
	done := &load.Result{UIDs: uids}
	t.Log(expectAll(t, watched, done, hookReader(t, everything, cloudEvents), oracle.CompareOptions{}))
}

// attacker writes what hurts in a namespace, for which alone it has a token, until a context ends.
type attacker struct {
	t         *testing.T
	namespace string
	config    *rest.Config
	client    *kubernetes.Clientset
}

func attackerIn(t *testing.T, namespace string) *attacker {
	t.Helper()
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "tenant")
	if err != nil {
		t.Fatal(err)
	}
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	admin := plane(t).Config()
	objectsIn(t, admin, rbac.WithResource("roles"), namespace).Create("tenant", map[string]any{
		"rules": []any{map[string]any{
			"apiGroups": []any{"", "example.com"}, "resources": []any{"configmaps", "widgets"},
			"verbs": []any{"get", "create", "update", "patch", "delete"},
		}},
	})
	objectsIn(t, admin, rbac.WithResource("rolebindings"), namespace).Create("tenant", map[string]any{
		"roleRef":  map[string]any{"apiGroup": rbac.Group, "kind": "Role", "name": "tenant"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": "tenant"}},
	})
	account.QPS, account.WarningHandler = -1, rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(account)
	if err != nil {
		t.Fatal(err)
	}
	a := &attacker{t: t, namespace: namespace, config: account, client: client}
	eventually(t, wide, "the tenant has its rights", func() error {
		_, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "none", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("got %w", err)
	})
	return a
}

// check reports an error of the API server, unless it is because the attack is over.
func (a *attacker) check(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		a.t.Errorf("%.300v", err)
	}
}

// path is that of a resource of the namespace.
func (a *attacker) path(gvr schema.GroupVersionResource) string {
	root := "/apis/" + gvr.Group
	if gvr.Group == "" {
		root = "/api"
	}
	return root + "/" + gvr.Version + "/namespaces/" + a.namespace + "/" + gvr.Resource
}

func (a *attacker) create(ctx context.Context, gvr schema.GroupVersionResource, body string) {
	request := a.client.CoreV1().RESTClient().Post().AbsPath(a.path(gvr)).SetHeader("Content-Type", "application/json")
	a.check(ctx, request.Body([]byte(body)).Do(ctx).Error())
}

func (a *attacker) patch(ctx context.Context, gvr schema.GroupVersionResource, name, patch string) {
	request := a.client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(a.path(gvr) + "/" + name)
	a.check(ctx, request.Body([]byte(patch)).Do(ctx).Error())
}

func (a *attacker) delete(ctx context.Context, gvr schema.GroupVersionResource, name string) {
	a.check(ctx, a.client.CoreV1().RESTClient().Delete().AbsPath(a.path(gvr)+"/"+name).Do(ctx).Error())
}

func (a *attacker) manageByMany(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		_, err := a.client.CoreV1().ConfigMaps(a.namespace).Patch(ctx, "managed", types.ApplyPatchType,
			fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"managed","annotations":{"a%d":%q}}}`, n%200, strings.Repeat("x", 500)),
			metav1.PatchOptions{FieldManager: fmt.Sprint("m-", n%200)})
		a.check(ctx, err)
	}
}

func (a *attacker) hang(ctx context.Context) {
	widgets := load.Widgets().GVR
	a.create(ctx, widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"hangs","finalizers":["example.com/hang"]}}`)
	a.delete(ctx, widgets, "hangs")
	for n := 0; ctx.Err() == nil; n++ {
		a.patch(ctx, widgets, "hangs", fmt.Sprintf(`{"spec":{"n":%d}}`, n))
	}
	a.patch(context.WithoutCancel(ctx), widgets, "hangs", `{"metadata":{"finalizers":null}}`)
}

func (a *attacker) recreate(ctx context.Context) {
	for ctx.Err() == nil {
		a.create(ctx, configMaps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"again"}}`)
		a.delete(ctx, configMaps, "again")
	}
}

func (a *attacker) flood(ctx context.Context) {
	for ctx.Err() == nil {
		a.create(ctx, configMaps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"flood-"}}`)
	}
}

// writeOdd writes keys, numbers and text that a program may read as something else, and what looks like another record.
func (a *attacker) writeOdd(ctx context.Context) {
	widgets := load.Widgets().GVR
	in := objectsIn(a.t, a.config, widgets, a.namespace)
	a.create(ctx, widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"odd"}}`)
	specs := []string{
		`{"__proto__":{"a":1},"":{"":""},"a.b/c":1,"~":1,"~0~1/":[1,2,3],"metadata":{"namespace":"other"}}`,
		`{"__proto__":null,"":{"":[]},"a.b/c":{"~1":2},"~":[],"~0~1/":[3,2,{"":1}]}`,
		`{"s":"\ud800","t":"\udc00\ud800x","u":"\u0000\u001f\u2028\u2029","v":"\ufffd"}`,
		`{"i":9223372036854775807,"j":-9223372036854775808,"k":99999999999999999999,"l":1e308,"m":-0,"n":-0.0,"o":1e-400,"r":9007199254740993}`,
		`{"i":9223372036854775806,"j":-9223372036854775807,"k":1,"l":1e307,"m":0,"n":0.0,"q":1E6,"r":9007199254740992}`,
		`{"d":1,"d":{"d":2,"d":3},"type":"DELETED","id":"other/uid/1/ADDED","cluster":"other"}`,
		`{"l":[` + strings.Repeat(`{},`, 10_000) + `[[[]]]]}`,
	}
	for n := 0; ctx.Err() == nil; n++ {
		object, err := in.client.Get(ctx, "odd", metav1.GetOptions{})
		if err != nil {
			a.check(ctx, err)
			continue
		}
		body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"odd","resourceVersion":%q},"spec":%s}`,
			object.GetResourceVersion(), specs[n%len(specs)])
		request := a.client.CoreV1().RESTClient().Put().AbsPath(a.path(widgets)+"/odd").SetHeader("Content-Type", "application/json")
		a.check(ctx, request.Body([]byte(body)).Do(ctx).Error())
	}
}

// writeExpensive changes an object of 26 KB of which an expression compares each pair of items.
func (a *attacker) writeExpensive(ctx context.Context) {
	var writing sync.WaitGroup
	for n := range 3 {
		writing.Go(func() {
			name := fmt.Sprint("expensive-", n)
			object := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
				"data": map[string]any{"value": strings.Repeat("abcdefg,", 3000)},
			}}
			_, err := objectsIn(a.t, a.config, configMaps, a.namespace).client.Create(ctx, object, metav1.CreateOptions{})
			a.check(ctx, err)
			for n := 0; ctx.Err() == nil; n++ {
				a.patch(ctx, configMaps, name, fmt.Sprintf(`{"data":{"n":"%d"}}`, n))
			}
		})
	}
	writing.Wait()
}
