package main

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/load"
)

const namespace = "shop"

var (
	deployments = load.Deployments().GVR
	configMaps  = load.ConfigMaps().GVR
	widgets     = load.Widgets().GVR
)

// cluster is the control plane and the script of what happens in it.
type cluster struct {
	plane  *controlplane.ControlPlane
	client dynamic.Interface
	script []step
	// made are the ids of the objects that were there before anything watched.
	made []string

	next int
	uids map[string]string // of the script's objects, by resource and name
}

// step is one change: an object to create, a patch, or, with neither, a deletion.
type step struct {
	resource schema.GroupVersionResource
	name     string // with a %d for the round
	create   map[string]any
	patch    map[string]any
}

// startCluster starts a control plane with a CRD, a namespace, and two objects for the snapshot.
func startCluster(ctx context.Context) (_ *cluster, err error) {
	plane, err := controlplane.Start(ctx, controlplane.Options{})
	if err != nil {
		return nil, err
	}
	c := &cluster{plane: plane, script: script(), uids: map[string]string{}}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	if c.client, err = dynamic.NewForConfig(plane.Config()); err != nil {
		return nil, err
	}
	if err := load.CreateNamespaces(ctx, plane.Config(), namespace); err != nil {
		return nil, err
	}
	if err := load.InstallWidgets(ctx, plane.Config()); err != nil {
		return nil, err
	}
	for _, s := range []step{
		{resource: deployments, name: "api", create: deployment("api:4.2", 2)},
		{resource: configMaps, name: "flags", create: configMap("beta", "off")},
	} {
		id, err := c.do(ctx, s, s.name)
		if err != nil {
			return nil, err
		}
		c.made = append(c.made, id)
	}
	return c, nil
}

func (c *cluster) kubeconfig() string { return c.plane.KubeconfigFile() }

// account writes a kubeconfig for the replicas, which recognize each other by their ServiceAccount. In a cluster it has the few rights
// that `kubeferry rbac` prints.
func (c *cluster) account(ctx context.Context, kubeconfig string) error {
	const name = "kubeferry"
	config, err := c.plane.ServiceAccountConfig(ctx, namespace, name)
	if err != nil {
		return err
	}
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	binding := &unstructured.Unstructured{Object: map[string]any{
		"roleRef":  map[string]any{"apiGroup": rbac.Group, "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": name}},
	}}
	binding.SetGroupVersionKind(rbac.WithKind("ClusterRoleBinding"))
	binding.SetName(name)
	if _, err := c.client.Resource(rbac.WithResource("clusterrolebindings")).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("grant the replicas their rights: %w", err)
	}
	return controlplane.WriteKubeconfig(kubeconfig, config)
}

func (c *cluster) stop() { c.plane.Stop() }

// script is what happens, over and over: every round ends with nothing left of it.
func script() []step {
	return []step{
		{resource: deployments, name: "web-%d", create: deployment("nginx:1.27", 1)},
		{resource: configMaps, name: "settings-%d", create: configMap("theme", "light")},
		{resource: deployments, name: "web-%d", patch: spec("replicas", 3)},
		{resource: widgets, name: "gear-%d", create: spec("size", 1)},
		{resource: configMaps, name: "settings-%d", patch: configMap("theme", "dark")},
		{resource: deployments, name: "web-%d", patch: deployment("nginx:1.28", 3)},
		{resource: widgets, name: "gear-%d", patch: spec("size", 2)},
		{resource: configMaps, name: "settings-%d", patch: map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"team": "checkout"}},
		}},
		{resource: widgets, name: "gear-%d"},
		{resource: configMaps, name: "settings-%d"},
		{resource: deployments, name: "web-%d"},
	}
}

// change makes the next change of the script and returns the id that its record must have.
func (c *cluster) change(ctx context.Context) (id string, err error) {
	s, round := c.script[c.next%len(c.script)], c.next/len(c.script)+1
	c.next++
	return c.do(ctx, s, fmt.Sprintf(s.name, round))
}

func (c *cluster) do(ctx context.Context, s step, name string) (id string, err error) {
	objects, key := c.client.Resource(s.resource).Namespace(namespace), s.resource.Resource+"/"+name
	switch {
	case s.create != nil:
		object := &unstructured.Unstructured{Object: map[string]any{}}
		for field, value := range s.create {
			object.Object[field] = value
		}
		object.SetGroupVersionKind(s.resource.GroupVersion().WithKind(kinds[s.resource]))
		object.SetName(name)
		made, err := objects.Create(ctx, object, metav1.CreateOptions{})
		if err != nil {
			return "", fmt.Errorf("create %s: %w", key, err)
		}
		c.uids[key] = string(made.GetUID())
		return changeID(c.uids[key], made.GetResourceVersion(), added), nil
	case s.patch != nil:
		patch, err := json.Marshal(s.patch)
		if err != nil {
			return "", err
		}
		made, err := objects.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return "", fmt.Errorf("patch %s: %w", key, err)
		}
		return changeID(c.uids[key], made.GetResourceVersion(), modified), nil
	default:
		if err := objects.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return "", fmt.Errorf("delete %s: %w", key, err)
		}
		// The resource version of a deletion is in the watch event only.
		return changeID(c.uids[key], "", deleted), nil
	}
}

var kinds = map[schema.GroupVersionResource]string{
	deployments: load.Deployments().Kind, configMaps: load.ConfigMaps().Kind, widgets: load.Widgets().Kind,
}

func deployment(image string, replicas int64) map[string]any {
	labels := map[string]any{"app": "demo"}
	return map[string]any{"spec": map[string]any{
		"replicas": replicas,
		"selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{
			"metadata": map[string]any{"labels": labels},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "app", "image": image}}},
		},
	}}
}

func configMap(key, value string) map[string]any {
	return map[string]any{"data": map[string]any{key: value}}
}

func spec(field string, value int64) map[string]any {
	return map[string]any{"spec": map[string]any{field: value}}
}
