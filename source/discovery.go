package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// ErrMissing is returned for a resource that the API server does not serve, at present: a CRD may bring it.
var ErrMissing = errors.New("the API server has no such resource")

// Wrapped together with [ErrMissing]: the objects of the resource exist or may exist, so no deletion is inferred.
var (
	errOtherVersion = errors.New("it is served in another version")
	errNotServed    = errors.New("its CustomResourceDefinition exists, and does not serve it")
	errMayExist     = errors.New("whether its objects exist is not known")
)

// ErrScope is returned when a source with namespaces has a resource without.
var ErrScope = errors.New("the resource is cluster-scoped, so that `namespaces` would never take effect: move it to a source of its own without `namespaces`")

// resolved is a resource's entry in discovery.
type resolved struct {
	kind       schema.GroupVersionKind
	namespaced bool
}

// resolve returns a resource's entry in discovery. The error wraps [ErrMissing] if discovery answered without one.
func (c *Client) resolve(ctx context.Context, gvr schema.GroupVersionResource) (resolved, error) {
	list, err := c.discover(ctx, gvr.GroupVersion())
	if apierrors.IsNotFound(err) {
		return resolved{}, c.missing(ctx, gvr, "", err)
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
	return resolved{}, c.missing(ctx, gvr, suggestion(gvr, list.APIResources), nil)
}

// missing returns the error for a resource that discovery does not list in this version. Its objects may still exist under another
// version of the group, or as long as its CustomResourceDefinition exists; if neither can be read, the error says so. notFound is
// the 404 for this version, if there was one. It proves nothing: a load balancer without API servers returns it too.
func (c *Client) missing(ctx context.Context, gvr schema.GroupVersionResource, hint string, notFound error) error {
	missing := fmt.Errorf("%w: %s%s", ErrMissing, delta.ResourceName(gvr), hint)
	versions, err := c.versions(ctx, gvr.Group)
	if err != nil {
		return fmt.Errorf("discover the versions of %q: %w", gvr.Group, err)
	}
	if notFound != nil && slices.Contains(versions, gvr.GroupVersion()) {
		return fmt.Errorf("discover %s, which the API server has: %w", gvr.GroupVersion(), notFound)
	}
	for _, other := range versions {
		if other == gvr.GroupVersion() {
			continue
		}
		list, err := c.discover(ctx, other)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("discover %s: %w", other, err)
		}
		if err == nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == gvr.Resource }) {
			return fmt.Errorf("%w (%w: %s)", missing, errOtherVersion, delta.ResourceName(other.WithResource(gvr.Resource)))
		}
	}
	if BuiltIn(gvr.Group) { // no CRD can bring it
		return missing
	}
	exists, err := c.hasCRD(ctx, gvr.GroupResource())
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return fmt.Errorf("%w (%w: %s)", missing, errMayExist, err.Error()) // not wrapped: it is no forbidden watch
	case err != nil:
		return fmt.Errorf("look for the CustomResourceDefinition of %s: %w", delta.ResourceName(gvr), err)
	case exists:
		return fmt.Errorf("%w (%w)", missing, errNotServed)
	}
	return missing
}

// hasCRD reports whether a resource has a CustomResourceDefinition. Its objects exist as long as that does, served or not: the
// API server deletes them before it. It reads a list, since an empty one is certain, unlike a 404.
func (c *Client) hasCRD(ctx context.Context, resource schema.GroupResource) (bool, error) {
	var list metav1.PartialObjectMetadataList
	request := c.rest.Get().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
		Param("fieldSelector", "metadata.name="+resource.String()).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	err := c.getJSON(ctx, request, "PartialObjectMetadataList", &list)
	return len(list.Items) > 0, err
}

// versions lists the versions that are served of some groups, or of all if none is named, each group's preferred one first. It reads the lists
// of all groups: that a group is missing there is certain, unlike a 404.
func (c *Client) versions(ctx context.Context, groups ...string) (all []schema.GroupVersion, err error) {
	wanted := func(group string) bool { return len(groups) == 0 || slices.Contains(groups, group) }
	if wanted("") {
		var core metav1.APIVersions
		if err := c.getJSON(ctx, c.rest.Get().AbsPath("/api"), "APIVersions", &core); err != nil {
			return nil, err
		}
		for _, version := range core.Versions {
			all = append(all, schema.GroupVersion{Version: version})
		}
	}
	if slices.Equal(groups, []string{""}) {
		return all, nil
	}
	var list metav1.APIGroupList
	if err := c.getJSON(ctx, c.rest.Get().AbsPath("/apis"), "APIGroupList", &list); err != nil {
		return nil, err
	}
	for _, group := range list.Groups {
		for _, version := range group.Versions {
			if wanted(group.Name) {
				all = append(all, schema.GroupVersion{Group: group.Name, Version: version.Version})
			}
		}
	}
	return all, nil
}

// isGone reports whether the resource certainly does not exist, so that its objects do not exist either.
func isGone(err error) bool { return isAbsent(err) && !errors.Is(err, errMayExist) }

// isAbsent reports whether the resource does not exist as far as is known.
func isAbsent(err error) bool {
	return errors.Is(err, ErrMissing) && !errors.Is(err, errOtherVersion) && !errors.Is(err, errNotServed)
}

// discover reads what a group version holds. client-go's discovery client turns a 403 or 404 for "v1" into an empty
// list, as if Pods had ceased to exist.
func (c *Client) discover(ctx context.Context, gv schema.GroupVersion) (*metav1.APIResourceList, error) {
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	var list metav1.APIResourceList
	return &list, c.getJSON(ctx, c.rest.Get().AbsPath(path), "APIResourceList", &list)
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

// BuiltIn reports whether an API group is Kubernetes' own, and so never defined by a CustomResourceDefinition. Groups that end
// in .k8s.io may also belong to CustomResourceDefinitions, such as gateway.networking.k8s.io.
func BuiltIn(group string) bool {
	switch group {
	case "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "authentication.k8s.io",
		"authorization.k8s.io", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io",
		"flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "networking.k8s.io", "node.k8s.io",
		"rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io", "storagemigration.k8s.io":
		return true
	}
	return !strings.Contains(group, ".")
}
