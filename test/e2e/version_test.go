package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestVersionNoLongerServed stops serving the watched version of a CRD for a while, and starts kubeferry anew meanwhile: one version
// of two, and the only one. Its objects exist, so no DELETED is sent, and nothing is repeated when the version is served again.
func TestVersionNoLongerServed(t *testing.T) {
	beside(t)
	t.Run("one of two", func(t *testing.T) { versionNoLongerServed(t, true, "version.example.com/v2/sprockets") })
	t.Run("the only one", func(t *testing.T) { versionNoLongerServed(t, false, "its CustomResourceDefinition exists") })
}

// versionNoLongerServed stops serving v1; v2 is served throughout or not at all. The log then has a reason.
func versionNoLongerServed(t *testing.T, v2 bool, reason string) {
	config := plane(t).Config()
	namespace := newNamespace(t, "version")
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	version := func(name string, served, storage bool) any {
		return map[string]any{
			"name": name, "served": served, "storage": storage,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
		}
	}
	const name = "sprockets.version.example.com"
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": "version.example.com", "scope": "Namespaced",
			"names":    map[string]any{"plural": "sprockets", "singular": "sprocket", "kind": "Sprocket", "listKind": "SprocketList"},
			"versions": []any{version("v1", true, false), version("v2", v2, true)},
		},
	}}
	eventually(t, wide, "the CRD is created", func() error { // that of a run before may still be going
		_, err := crds.Create(t.Context(), crd, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wide)
		defer cancel()
		if err := crds.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	serve := func(v1 bool) {
		t.Helper()
		eventually(t, wide, "the CRD is updated", func() error {
			current, err := crds.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			versions := []any{version("v1", v1, false), version("v2", v2, true)}
			if err := unstructured.SetNestedSlice(current.Object, versions, "spec", "versions"); err != nil {
				return err
			}
			_, err = crds.Update(t.Context(), current, metav1.UpdateOptions{})
			return err
		})
	}
	written := "v1"
	if v2 {
		written = "v2"
	}
	sprockets := client.Resource(schema.GroupVersionResource{Group: "version.example.com", Version: written, Resource: "sprockets"}).Namespace(namespace)
	write := func(name string) {
		t.Helper()
		eventually(t, wide, "the object is written", func() error {
			_, err := sprockets.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "version.example.com/" + written, "kind": "Sprocket", "metadata": map[string]any{"name": name},
			}}, metav1.CreateOptions{})
			return err
		})
	}
	write("before")

	hook := webhooktest.Start(t)
	text := fmt.Sprintf("stateDir: %q\n", t.TempDir()) +
		hookConfig("[version.example.com/v1/sprockets]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	read := hookReader(t, hook, cloudEvents)
	wait(t, read, "before", "ADDED")
	serve(false)
	e.WaitLogged(wide, "", reason)
	e.Stop()
	e = startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitLogged(wide, "", reason)
	if v2 {
		write("meanwhile")
	}
	lasting(t, time.Second)
	serve(true)
	if !v2 {
		write("meanwhile")
	}
	wait(t, read, "meanwhile", "ADDED")
	e.WaitSettled(wide)
	// The API server begins a new watch cache when it serves the version again: it may refuse the history.
	if got := of(read(), "before"); len(got) != 1 {
		t.Errorf("of the object that was there all the time: %v", got)
	}
	for _, r := range read() {
		if r.Type == oracle.Deleted {
			t.Errorf("%s, although nothing was deleted", r.ID)
		}
	}
}
