package source

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Access names what one watch reads: a resource, in one namespace or, if Namespace is empty, in the whole cluster. If Name is set, the
// watch reads only that object.
type Access struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string
}

// Access returns what the watches of a source with these options list and watch.
func (o *Options) Access() []Access {
	var access []Access
	if o.NamespaceSelector != "" {
		access = append(access, Access{Resource: namespaces})
	}
	for _, resource := range o.Resources {
		if o.NamespaceSelector != "" { // any namespace may be selected
			access = append(access, Access{Resource: resource, Name: selectedName(o.FieldSelector)})
			continue
		}
		for _, s := range scopes(o.Namespaces, o.FieldSelector) {
			access = append(access, Access{Resource: resource, Namespace: s.namespace, Name: selectedName(s.fieldSelector)})
		}
	}
	return access
}

// selectedName returns the name that a field selector selects, or an empty string. The API server takes a list or watch with
// such a selector for a request for that object (requestinfo.go), which a rule with resourceNames may grant.
func selectedName(fieldSelector string) string {
	selector, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return ""
	}
	name, _ := selector.RequiresExactMatch("metadata.name")
	return name
}

// Matching returns the resources that the wildcards of a source with these options stand for now.
func (c *Client) Matching(ctx context.Context, o Options) ([]schema.GroupVersionResource, error) {
	if len(o.wildcards()) == 0 {
		return nil, nil
	}
	served, failed, err := c.Served(ctx, o.groups()...)
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("discovery of %v cannot be read", failed)
	}
	return o.matching(served, nil), err
}

// Check returns nil if the API server serves the resources of a source and lists them with its selectors, as a watch needs it. Whether it grants
// the right to do so is not checked. A resource without an entry in discovery is an error that wraps [ErrMissing].
func (c *Client) Check(ctx context.Context, options Options) error {
	for _, resource := range options.Resources {
		found, err := c.resolve(ctx, resource)
		if err == nil && options.restricted() && !found.namespaced {
			err = ErrScope
		}
		if err != nil {
			return err
		}
		for _, s := range scopes(options.Namespaces, options.FieldSelector) {
			of := collection{client: c, resource: resource, namespace: s.namespace, labelSelector: options.LabelSelector, fieldSelector: s.fieldSelector}
			if err := of.trySelectors(ctx); err != nil && !apierrors.IsForbidden(err) {
				return err
			}
		}
	}
	return nil
}

// trySelectors returns the error that the API server answers to the smallest list with the selectors.
func (c *collection) trySelectors(ctx context.Context) error {
	_, err := c.list(ctx, metav1.ListOptions{Limit: 1})
	if selectors := c.selectors(); selectors != "" && (apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)) {
		return fmt.Errorf("the API server does not select %s by %s: %w", delta.ResourceName(c.resource), selectors, err)
	}
	return err
}

// selectors describes the selectors; it is empty if there are none.
func (c *collection) selectors() string {
	var all []string
	if c.labelSelector != "" {
		all = append(all, fmt.Sprintf("labelSelector %q", c.labelSelector))
	}
	if c.fieldSelector != "" {
		all = append(all, fmt.Sprintf("fieldSelector %q", c.fieldSelector))
	}
	return strings.Join(all, " and ")
}

// Granted reports whether the API server grants a request with these attributes, those of a SelfSubjectAccessReview's
// resourceAttributes. The request needs a right that the ClusterRole
// system:basic-user usually grants to every authenticated client.
func (c *Client) Granted(ctx context.Context, attributes map[string]any) (bool, error) {
	review, err := json.Marshal(map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": attributes},
	})
	if err != nil {
		return false, err
	}
	request := c.rest.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").
		SetHeader("Content-Type", "application/json").Body(review)
	var answer struct{ Status struct{ Allowed bool } }
	err = c.getJSON(ctx, request, "SelfSubjectAccessReview", &answer)
	return answer.Status.Allowed, err
}
