package source

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ResourceOf returns the resource of a kind, in the first version in which discovery lists it, and whether its objects
// have namespaces. The error wraps [ErrMissing] if there is no such resource that can be watched. A RESTMapper of
// client-go would do as well, but brings all of k8s.io/api and 20 MB.
func (c *Client) ResourceOf(ctx context.Context, kind schema.GroupKind) (gvr schema.GroupVersionResource, namespaced bool, err error) {
	versions, err := c.versions(ctx, kind.Group)
	if err != nil {
		return gvr, false, fmt.Errorf("discover the versions of %q: %w", kind.Group, err)
	}
	for _, version := range versions {
		gv := schema.GroupVersion{Group: kind.Group, Version: version}
		list, err := c.discover(ctx, gv)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return gvr, false, fmt.Errorf("discover %s: %w", gv, err)
		}
		for _, resource := range list.APIResources {
			if resource.Kind == kind.Kind && !strings.Contains(resource.Name, "/") && // no subresource, as pods/eviction
				slices.Contains(resource.Verbs, "list") && slices.Contains(resource.Verbs, "watch") {
				return gv.WithResource(resource.Name), resource.Namespaced, nil
			}
		}
	}
	return gvr, false, fmt.Errorf("%w of the kind %s", ErrMissing, kind)
}
