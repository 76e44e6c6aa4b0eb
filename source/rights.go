package source

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// rightsInterval is how often at most the rights of a watch are checked; twice that is how often at least.
const rightsInterval = 10 * time.Second

// checkRights checks until ctx ends whether the watch may still be opened. The API server does not end a watch whose right was
// revoked: without the check that shows only at the next opening, minutes later.
func (w *watcher) checkRights(ctx context.Context) {
	for {
		select {
		case <-time.After(wait.Jitter(rightsInterval, 1)):
		case <-ctx.Done():
			return
		}
		verb, err := w.collection.missingRight(ctx)
		if err != nil { // an outage shows elsewhere; where reviews are forbidden, the next opening has to do
			w.logger.Debug("cannot check the rights of the watch", "err", err)
			continue
		}
		w.health.checked(verb)
	}
}

// missingRight returns the verb that the API server does not grant, or an empty string. It needs a right that every
// authenticated client has, by the ClusterRole system:basic-user. The types of k8s.io/api would add 20 MB.
func (c *collection) missingRight(ctx context.Context) (string, error) {
	for _, verb := range []string{"list", "watch"} {
		review := fmt.Appendf(nil, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview",`+
			`"spec":{"resourceAttributes":{"namespace":%q,"verb":%q,"group":%q,"version":%q,"resource":%q}}}`,
			c.namespace, verb, c.resource.Group, c.resource.Version, c.resource.Resource)
		request := c.client.rest.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").
			SetHeader("Content-Type", "application/json").Body(review)
		var answer struct{ Status struct{ Allowed bool } }
		if err := c.client.getJSON(ctx, request, "SelfSubjectAccessReview", &answer); err != nil {
			return "", err
		}
		if !answer.Status.Allowed {
			return verb, nil
		}
	}
	return "", nil
}
