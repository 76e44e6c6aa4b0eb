package explain

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// checkResource returns an error if --resource cannot be that of the object: a Secret must not be shown as another resource.
func (x *explainer) checkResource(object *delta.Object) error {
	if x.Resource == "" {
		return nil
	}
	if object.APIVersion() != x.resource.GroupVersion().String() || isSecret(object) != shape.IsSecret(x.resource) {
		return fmt.Errorf("--resource %s is not that of %s", x.Resource, objectName(object))
	}
	return nil
}

// isSecret ignores case: a misspelled Secret must not be shown either.
func isSecret(o *delta.Object) bool {
	return o.APIVersion() == "v1" && strings.EqualFold(o.Kind(), "Secret")
}

// resourceOf returns the resource of an object: of the usual plurals one that a source has, else the likeliest.
func (x *explainer) resourceOf(object *delta.Object) schema.GroupVersionResource {
	if x.Resource != "" {
		return x.resource
	}
	if isSecret(object) {
		return schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	}
	kind := schema.FromAPIVersionAndKind(object.APIVersion(), object.Kind())
	guess, singular := meta.UnsafeGuessKindToResource(kind)
	for _, plural := range []string{guess.Resource, singular.Resource + "s", singular.Resource + "es", singular.Resource} {
		resource := kind.GroupVersion().WithResource(plural)
		if slices.ContainsFunc(x.Config.Sources, func(s config.Source) bool { return slices.Contains(s.Resources, resource) }) {
			return resource
		}
	}
	return guess
}
