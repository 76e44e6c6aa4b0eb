package explain

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
)

// checkResource makes sure that --resource is of one kind, and that it makes no Secret pass for something else.
func (x *explainer) checkResource(objects []*delta.Object) error {
	if x.Resource == "" {
		return nil
	}
	kind := ""
	for _, object := range objects {
		if object.APIVersion() != x.resource.GroupVersion().String() {
			continue
		}
		switch {
		case isSecret(object) != pipeline.IsSecret(x.resource):
			return fmt.Errorf("--resource %s is not that of a %s", x.Resource, object.Kind())
		case kind != "" && kind != object.Kind():
			return fmt.Errorf("--resource %s: it cannot be that of a %s and of a %s; explain them one by one", x.Resource, kind, object.Kind())
		}
		kind = object.Kind()
	}
	if kind == "" {
		return fmt.Errorf("--resource %s: no object has the apiVersion %s", x.Resource, x.resource.GroupVersion())
	}
	return nil
}

// isSecret takes a kind that is not quite right for one as well: nothing of it must be shown.
func isSecret(o *delta.Object) bool {
	return o.APIVersion() == "v1" && strings.EqualFold(o.Kind(), "Secret")
}

// resourceOf returns the resource of an object: of the usual plurals one that a source has, else the likeliest.
func (x *explainer) resourceOf(object *delta.Object) schema.GroupVersionResource {
	if x.Resource != "" && object.APIVersion() == x.resource.GroupVersion().String() {
		return x.resource
	}
	if isSecret(object) {
		return schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	}
	kind := schema.FromAPIVersionAndKind(object.APIVersion(), object.Kind())
	guess, singular := meta.UnsafeGuessKindToResource(kind)
	for _, plural := range []string{guess.Resource, singular.Resource + "s", singular.Resource + "es", singular.Resource} {
		if resource := kind.GroupVersion().WithResource(plural); hasSource(x.Config.Sources, resource) {
			return resource
		}
	}
	return guess
}

func hasSource(configured []config.Source, resource schema.GroupVersionResource) bool {
	return slices.ContainsFunc(configured, func(s config.Source) bool { return slices.Contains(s.Resources, resource) })
}

// resourceHint returns what to do about a resource that no source has; empty if one has it.
func resourceHint(resource schema.GroupVersionResource, configured []config.Source) string {
	if hasSource(configured, resource) {
		return ""
	}
	missing := "no source has " + delta.ResourceName(resource)
	var all []string
	for _, source := range configured {
		for _, other := range source.Resources {
			name := delta.ResourceName(other)
			if other.GroupResource() == resource.GroupResource() {
				return fmt.Sprintf("%s, but source %q has %s: the API server would send the object in that version", missing, source.Name, name)
			}
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return fmt.Sprintf("%s; they have %s. If the kind has another plural, say --resource", missing, strings.Join(all, ", "))
}
