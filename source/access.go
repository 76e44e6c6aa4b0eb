package source

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Access is what one watch lists and watches: a resource in a namespace, or in the whole cluster if that is empty; of it only
// the object called Name, if that is set.
type Access struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string
}

// Access returns what the watches of a source with these options list and watch.
func (o *Options) Access() []Access {
	var access []Access
	for _, resource := range o.Resources {
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

// Serves returns nil if the API server serves a resource that can be watched. A resource without an entry in discovery is an
// error that wraps [ErrMissing].
func (c *Client) Serves(ctx context.Context, resource schema.GroupVersionResource) error {
	_, err := c.resolve(ctx, resource)
	return err
}

// Granted reports whether the API server grants a request with these attributes, those of a SelfSubjectAccessReview's
// resourceAttributes. Sending one takes a right that every authenticated client has, by the ClusterRole system:basic-user.
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
