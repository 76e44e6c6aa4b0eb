package deploy_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/stdout"
	"github.com/kubeferry/kubeferry/sinks/webhook"
)

// manifests are what a kustomization or a chart renders to.
type manifests struct {
	text    []byte
	objects []*unstructured.Unstructured
	// workload is the Deployment or StatefulSet: its metadata, and those fields that both have.
	workload appsv1.Deployment
	// claims are the StatefulSet's volumeClaimTemplates; nil of a Deployment.
	claims []corev1.PersistentVolumeClaim
	// management is the StatefulSet's podManagementPolicy.
	management appsv1.PodManagementPolicyType
	role       rbacv1.ClusterRole
	lease      coordinationv1.Lease
	budget     policyv1.PodDisruptionBudget
	network    networkingv1.NetworkPolicy
	// file is the configuration in the ConfigMap that the Pods mount.
	file string
	// loaded is what it means with the environment of the Pods.
	loaded *config.Config
}

// render builds deploy/<name> as `kubectl apply -k` does.
func render(t *testing.T, name string) *manifests {
	t.Helper()
	path := filepath.Join("..", "..", "deploy", name)
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return readManifests(t, path, text)
}

// readManifests sorts rendered objects, and loads their configuration.
func readManifests(t *testing.T, path string, text []byte) *manifests {
	t.Helper()
	m := &manifests{text: text, objects: decode(t, text)}
	configMaps := map[string]corev1.ConfigMap{}
	for _, object := range m.objects {
		switch object.GetKind() {
		case "Deployment":
			convert(t, object, &m.workload)
		case "StatefulSet":
			var set appsv1.StatefulSet
			convert(t, object, &set)
			m.workload.ObjectMeta, m.claims, m.management = set.ObjectMeta, set.Spec.VolumeClaimTemplates, set.Spec.PodManagementPolicy
			m.workload.Spec.Replicas, m.workload.Spec.Selector, m.workload.Spec.Template = set.Spec.Replicas, set.Spec.Selector, set.Spec.Template
		case "ClusterRole":
			convert(t, object, &m.role)
		case "Lease":
			convert(t, object, &m.lease)
		case "PodDisruptionBudget":
			convert(t, object, &m.budget)
		case "NetworkPolicy":
			convert(t, object, &m.network)
		case "ConfigMap":
			var configMap corev1.ConfigMap
			convert(t, object, &configMap)
			configMaps[configMap.Name] = configMap
		}
	}
	for _, volume := range m.workload.Spec.Template.Spec.Volumes {
		if volume.Name == "config" {
			m.file = configMaps[volume.ConfigMap.Name].Data["kubeferry.yaml"]
		}
	}
	var warnings config.Faults
	var err error
	m.loaded, warnings, err = config.Parse([]byte(m.file), path, config.Options{
		Kinds: []sinks.Kind{nats.Kind(), stdout.Kind(), webhook.Kind()},
		Getenv: func(name string) (string, bool) {
			for _, variable := range m.container().Env {
				switch {
				case variable.Name != name:
				case variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil && variable.ValueFrom.FieldRef.FieldPath == "status.podIP":
					return "10.0.0.1", true
				default:
					return variable.Value, true
				}
			}
			return "test", name == "CLUSTER_NAME" // which an overlay of deploy/base sets
		},
	})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("the configuration: %v %v", err, warnings)
	}
	return m
}

func convert(t *testing.T, from *unstructured.Unstructured, to any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(from.Object, to, true); err != nil {
		t.Fatalf("%s: %v", from.GetKind(), err)
	}
}

func (m *manifests) container() *corev1.Container {
	return &m.workload.Spec.Template.Spec.Containers[0]
}

// apply does what `kubectl apply --server-side -k` does, as strictly as the API server can.
func (m *manifests) apply(ctx context.Context, cluster *rest.Config) error {
	client, err := dynamic.NewForConfig(cluster)
	if err != nil {
		return err
	}
	discovered, err := discovery.NewDiscoveryClientForConfig(cluster)
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(discovered)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, object := range m.objects {
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		body, err := object.MarshalJSON()
		if err != nil {
			return err
		}
		_, err = client.Resource(mapping.Resource).Namespace(object.GetNamespace()).Patch(ctx, object.GetName(), types.ApplyPatchType, body,
			metav1.PatchOptions{FieldManager: "test", Force: new(true), FieldValidation: metav1.FieldValidationStrict})
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, object.GetName(), err)
		}
	}
	return nil
}
