package enrich

import (
	"encoding/json"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// object is one as the API server writes it. A Node has no namespace, and others are in shop.
func object(t *testing.T, kind, name, uid string, metadata map[string]any) *delta.Object {
	t.Helper()
	all := map[string]any{"name": name, "uid": uid, "resourceVersion": "1"}
	if kind != "Node" {
		all["namespace"] = "shop"
	}
	for key, value := range metadata {
		all[key] = value
	}
	raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": kind, "metadata": all, "spec": map[string]any{"labels": "none"}})
	if err != nil {
		t.Fatal(err)
	}
	o, err := delta.NewObject(raw)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func labels(app string) map[string]any {
	return map[string]any{"labels": map[string]any{"app": app}}
}

func thing(name, uid string) delta.Reference {
	return delta.Reference{APIVersion: "v1", Kind: "Thing", Namespace: "shop", Name: name, UID: types.UID(uid)}
}

func newCache(objects ...*delta.Object) *Cache {
	c := New(1<<20, prometheus.NewRegistry())
	for _, o := range objects {
		c.Put(o)
	}
	return c
}

// knows checks what an Event about an object gets, in the namespace where such an Event lies; want is empty for nothing.
func (c *Cache) knows(t *testing.T, ref delta.Reference, want string) {
	t.Helper()
	namespace := ref.Namespace
	if ref.Kind == "Node" {
		namespace = metav1.NamespaceDefault
	}
	if got, ok := c.Lookup(namespace, ref); string(got) != want || ok != (want != "") {
		t.Errorf("%+v: got %s, %v, want %s", ref, got, ok, want)
	}
}

func TestCache(t *testing.T) {
	c := newCache(object(t, "Thing", "a", "a1", labels("one")), object(t, "Thing", "b", "b1", map[string]any{
		"labels":          map[string]any{"app": "two"},
		"annotations":     map[string]any{delta.LastApplied: "planted", "note": "kept"},
		"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Owner", "name": "o", "uid": "u"}},
	}))
	c.knows(t, thing("a", "a1"), `{"labels":{"app":"one"}}`)
	c.knows(t, thing("b", "b1"), `{"labels":{"app":"two"},"annotations":{"note":"kept"},"ownerReferences":[{"apiVersion":"v1","kind":"Owner","name":"o","uid":"u"}]}`)
	for _, unknown := range []delta.Reference{
		thing("a", "other"), thing("nobody", "a1"),
		thing("a", ""), thing("a", "a"),
		{APIVersion: "v1", Kind: "Thing", Namespace: "elsewhere", Name: "a", UID: "a1"},
		{APIVersion: "v1", Kind: "Thing", Namespace: "shop", UID: "a1"},
		{APIVersion: "v1", Kind: "Other", Namespace: "shop", Name: "a", UID: "a1"},
		{APIVersion: "a/b/c", Kind: "Thing", Namespace: "shop", Name: "a", UID: "a1"},
		{},
	} {
		c.knows(t, unknown, "")
	}

	c.Put(object(t, "Thing", "a", "a1", labels("changed")))
	c.knows(t, thing("a", "a1"), `{"labels":{"app":"changed"}}`)
	c.Delete(object(t, "Thing", "a", "a1", labels("last")))
	c.knows(t, thing("a", "a1"), `{"labels":{"app":"changed"}}`) // Events about its end may follow
	c.Put(object(t, "Thing", "a", "a2", labels("successor")))
	c.knows(t, thing("a", "a2"), `{"labels":{"app":"successor"}}`)
	c.knows(t, thing("a", "a1"), "")
}

// TestNodes: the kubelet's references to its Node have no version, and the name as uid.
func TestNodes(t *testing.T) {
	c := newCache(object(t, "Node", "n1", "3b1f", labels("node")))
	ref := delta.Reference{Kind: "Node", Name: "n1"}
	for uid, want := range map[types.UID]string{"n1": `{"labels":{"app":"node"}}`, "3b1f": `{"labels":{"app":"node"}}`, "": ""} {
		ref.UID = uid
		c.knows(t, ref, want)
	}
}

// TestForeignObjects: whoever may write Events in one namespace reads nothing of another one, and nothing of objects that
// have no namespace.
func TestForeignObjects(t *testing.T) {
	c := newCache(object(t, "Thing", "a", "a1", labels("one")), object(t, "Node", "n1", "3b1f", labels("node")))
	for _, forged := range []struct {
		event string // its namespace
		about delta.Reference
	}{
		{"mine", thing("a", "a1")},
		{"default", thing("a", "a1")},
		{"", thing("a", "a1")},
		{"mine", delta.Reference{APIVersion: "v1", Kind: "Thing", Namespace: "mine", Name: "a", UID: "a1"}},
		{"mine", delta.Reference{APIVersion: "v1", Kind: "Thing", Name: "a", UID: "a1"}},
		{"mine", delta.Reference{Kind: "Node", Namespace: "mine", Name: "n1", UID: "3b1f"}},
		{"mine", delta.Reference{Kind: "Node", Name: "n1", UID: "n1"}},
		{"mine", delta.Reference{Kind: "Node", Namespace: "default", Name: "n1", UID: "n1"}},
		{"", delta.Reference{Kind: "Node", Name: "n1", UID: "n1"}},
		{"kube-system", delta.Reference{Kind: "Node", Name: "n1", UID: "n1"}},
	} {
		if metadata, ok := c.Lookup(forged.event, forged.about); ok {
			t.Errorf("an Event in %q about %+v gets %s", forged.event, forged.about, metadata)
		}
	}
}

// TestSecrets: an annotation of a Secret may hold its data, in whatever form, and so does the object.
func TestSecrets(t *testing.T) {
	secret := object(t, "Secret", "a", "a1", map[string]any{"labels": map[string]any{"app": "one"}, "annotations": map[string]any{"copy": "planted"}})
	c := newCache(secret.WithJSON([]byte(string(secret.JSON()[:len(secret.JSON())-1]) + `,"data":{"password":"cGxhbnRlZA=="}}`)))
	ref := thing("a", "a1")
	ref.Kind = "Secret"
	c.knows(t, ref, `{"labels":{"app":"one"}}`)
}

// TestVersions: an object is known in whatever version it is named.
func TestVersions(t *testing.T) {
	c := newCache(object(t, "Thing", "a", "a1", labels("one")))
	ref := thing("a", "a1")
	ref.APIVersion = "v2"
	c.knows(t, ref, `{"labels":{"app":"one"}}`)
}
