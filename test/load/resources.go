package load

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is a kind of object that the load consists of.
type Resource struct {
	GVR  schema.GroupVersionResource
	Kind string
	// body returns what makes revision number `revision` of an object differ from all others, padded with payload. It is
	// the object's content at creation and a merge patch afterwards.
	body func(o object, revision int, payload string) map[string]any
}

// object names one object of the load.
type object struct {
	resource        Resource
	namespace, name string
}

// All is every resource of this package. Widgets need [InstallWidgets].
func All() []Resource { return []Resource{Deployments(), ConfigMaps(), Events(), Widgets()} }

// GVRs are the group, version and resource of each of resources.
func GVRs(resources []Resource) []schema.GroupVersionResource {
	gvrs := make([]schema.GroupVersionResource, len(resources))
	for i, r := range resources {
		gvrs[i] = r.GVR
	}
	return gvrs
}

// ConfigMaps are v1/configmaps.
func ConfigMaps() Resource {
	return Resource{
		GVR:  schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Kind: "ConfigMap",
		body: func(_ object, revision int, payload string) map[string]any {
			return map[string]any{"data": map[string]any{"revision": fmt.Sprint(revision), "payload": payload}}
		},
	}
}

// Events are v1/events, which the API server keeps without a watch cache.
func Events() Resource {
	return Resource{
		GVR:  schema.GroupVersionResource{Version: "v1", Resource: "events"},
		Kind: "Event",
		body: func(o object, revision int, payload string) map[string]any {
			return map[string]any{
				"involvedObject": map[string]any{
					"apiVersion": "v1", "kind": "Pod", "namespace": o.namespace, "name": o.name,
				},
				"type": "Normal", "reason": "Loaded", "message": payload, "count": int64(revision + 1),
				"source": map[string]any{"component": "kubeferry-load"},
			}
		},
	}
}

// Deployments are apps/v1/deployments. Their generation grows with every revision; no controller acts on them.
func Deployments() Resource {
	return Resource{
		GVR:  schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		Kind: "Deployment",
		body: func(o object, revision int, payload string) map[string]any {
			labels := map[string]any{"app": o.name}
			return map[string]any{"spec": map[string]any{
				"replicas": int64(revision % 5),
				"selector": map[string]any{"matchLabels": labels},
				"template": map[string]any{
					"metadata": map[string]any{
						"labels":      labels,
						"annotations": map[string]any{"revision": fmt.Sprint(revision), "payload": payload},
					},
					"spec": map[string]any{"containers": []any{map[string]any{
						"name": "app", "image": fmt.Sprintf("example/app:%d", revision),
					}}},
				},
			}}
		},
	}
}

// Widgets are example.com/v1/widgets, of the CRD that [InstallWidgets] makes.
func Widgets() Resource {
	return Resource{
		GVR:  schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
		Kind: "Widget",
		body: func(_ object, revision int, payload string) map[string]any {
			return map[string]any{"spec": map[string]any{"size": int64(revision), "payload": payload}}
		},
	}
}

// manifest is an object as it is created.
func (o object) manifest(revision int, payload string) map[string]any {
	m := o.resource.body(o, revision, payload)
	m["apiVersion"] = o.resource.GVR.GroupVersion().String()
	m["kind"] = o.resource.Kind
	m["metadata"] = map[string]any{
		"namespace": o.namespace, "name": o.name, "labels": map[string]any{"load": "kubeferry"},
	}
	return m
}
