package load

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// CreateNamespaces creates the namespaces that do not exist. See RemoveNamespace.
func CreateNamespaces(ctx context.Context, config *rest.Config, names ...string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, name := range names {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create namespace %q: %w", name, err)
		}
	}
	return nil
}

// RemoveNamespace deletes a namespace and everything in it, and returns when it is gone. A test control plane has no
// controller manager, so this does what the namespace controller would: once the namespace is terminating, it deletes
// the collection of each resource there is, and lets the namespace go when all of them are empty.
func RemoveNamespace(ctx context.Context, config *rest.Config, name string) error {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	namespaces := client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete namespace %q: %w", name, err)
	}
	resources, err := deletable(client.Discovery())
	if err != nil {
		return fmt.Errorf("resources of namespace %q: %w", name, err)
	}
	for _, resource := range resources {
		collection := objects.Resource(resource).Namespace(name)
		err := collection.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err == nil {
			err = poll(ctx, func() error { // finalizers, and what was created in the last moment
				left, err := collection.List(ctx, metav1.ListOptions{})
				if err == nil && len(left.Items) > 0 {
					err = fmt.Errorf("%d left", len(left.Items))
				}
				return err
			})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s in %q: %w", resource, name, err)
		}
	}
	namespace, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		namespace.Spec.Finalizers = nil
		_, err = namespaces.Finalize(ctx, namespace, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("finalize namespace %q: %w", name, err)
	}
	return poll(ctx, func() error {
		_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("namespace %q is still there: %w", name, err)
	})
}

// deletable are the resources whose collections can be deleted in a namespace.
func deletable(client discovery.DiscoveryInterface) ([]schema.GroupVersionResource, error) {
	lists, err := client.ServerPreferredNamespacedResources()
	if err != nil {
		return nil, err
	}
	var resources []schema.GroupVersionResource
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, resource := range list.APIResources {
			if slices.Contains(resource.Verbs, "deletecollection") && slices.Contains(resource.Verbs, "list") {
				resources = append(resources, group.WithResource(resource.Name))
			}
		}
	}
	return resources, nil
}
