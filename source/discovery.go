package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/delta"
)

// ErrMissing says that the API server serves no such resource, now: a CRD may bring it.
var ErrMissing = errors.New("the API server has no such resource")

// ErrScope says that a source with namespaces names a resource that has none.
var ErrScope = errors.New("the resource is cluster-scoped, so that `namespaces` would never take effect: move it to a source of its own without `namespaces`")

// resolved is what discovery says of a resource.
type resolved struct {
	kind       schema.GroupVersionKind
	namespaced bool
}

// resolve looks a resource up. The error wraps [ErrMissing] if discovery answered and does not know it.
func (c *Client) resolve(ctx context.Context, gvr schema.GroupVersionResource) (resolved, error) {
	list, err := c.discover(ctx, gvr.GroupVersion())
	if apierrors.IsNotFound(err) {
		return resolved{}, fmt.Errorf("%w: there is no %s", ErrMissing, gvr.GroupVersion())
	}
	if err != nil {
		return resolved{}, fmt.Errorf("discover %s: %w", gvr.GroupVersion(), err)
	}
	for _, resource := range list.APIResources {
		if resource.Name != gvr.Resource {
			continue
		}
		for _, verb := range []string{"list", "watch"} {
			if !slices.Contains(resource.Verbs, verb) {
				return resolved{}, fmt.Errorf("%s cannot be watched: it has no %s (only %s)",
					delta.ResourceName(gvr), verb, strings.Join(resource.Verbs, ", "))
			}
		}
		return resolved{kind: gvr.GroupVersion().WithKind(resource.Kind), namespaced: resource.Namespaced}, nil
	}
	return resolved{}, fmt.Errorf("%w: %s%s", ErrMissing, delta.ResourceName(gvr), suggestion(gvr, list.APIResources))
}

// discover reads what a group version holds. client-go's discovery client turns a 403 or 404 for "v1" into an empty
// list, which would look here as if Pods had ceased to exist.
func (c *Client) discover(ctx context.Context, gv schema.GroupVersion) (*metav1.APIResourceList, error) {
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	body, err := c.rest.Get().AbsPath(path).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	if list.Kind != "APIResourceList" {
		return nil, fmt.Errorf("unexpected kind %q", list.Kind)
	}
	return &list, nil
}

// suggestion names the resource that a singular, a short name or a kind stands for.
func suggestion(gvr schema.GroupVersionResource, resources []metav1.APIResource) string {
	for _, resource := range resources {
		if resource.SingularName == gvr.Resource || slices.Contains(resource.ShortNames, gvr.Resource) ||
			strings.EqualFold(resource.Kind, gvr.Resource) {
			return fmt.Sprintf("; did you mean %s?", delta.ResourceName(gvr.GroupVersion().WithResource(resource.Name)))
		}
	}
	return ""
}
