package source

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ResourceOf looks up which resource shows the objects of a kind, in the kind's version if that is served, else in
// another one of its group; and whether they have namespaces. The error wraps [ErrMissing] if discovery answered and
// knows no such resource that can be watched.
func (c *Client) ResourceOf(ctx context.Context, kind schema.GroupVersionKind) (gvr schema.GroupVersionResource, namespaced bool, err error) {
	found, err := c.resourceIn(ctx, kind)
	if found == nil && err == nil {
		found, err = c.resourceElsewhere(ctx, kind)
	}
	if err != nil {
		return gvr, false, err
	}
	if found == nil {
		return gvr, false, fmt.Errorf("%w of the kind %s of %q", ErrMissing, kind.Kind, kind.GroupVersion())
	}
	return schema.GroupVersionResource{Group: kind.Group, Version: found.Version, Resource: found.Name}, found.Namespaced, nil
}

// resourceElsewhere looks through the other versions of the kind's group; the core group has none.
func (c *Client) resourceElsewhere(ctx context.Context, kind schema.GroupVersionKind) (*metav1.APIResource, error) {
	if kind.Group == "" {
		return nil, nil
	}
	versions, err := c.versions(ctx, kind.Group)
	if err != nil {
		return nil, fmt.Errorf("discover the versions of %q: %w", kind.Group, err)
	}
	for _, version := range versions {
		if version == kind.Version {
			continue
		}
		if found, err := c.resourceIn(ctx, kind.GroupKind().WithVersion(version)); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// resourceIn looks in the kind's own version; it returns nil if there is nothing to watch.
func (c *Client) resourceIn(ctx context.Context, kind schema.GroupVersionKind) (*metav1.APIResource, error) {
	list, err := c.discover(ctx, kind.GroupVersion())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("discover %s: %w", kind.GroupVersion(), err)
	}
	for _, resource := range list.APIResources {
		if resource.Kind == kind.Kind && !strings.Contains(resource.Name, "/") && // no subresource, as pods/eviction
			slices.Contains(resource.Verbs, "list") && slices.Contains(resource.Verbs, "watch") {
			resource.Version = kind.Version
			return &resource, nil
		}
	}
	return nil, nil
}
