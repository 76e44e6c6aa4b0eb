package source

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// rightsInterval is how often at most a watch reviews its two rights; twice that is how often at least. So a revoked right shows within a minute,
// and 200 watches make about nine requests a second, each a line in an audit log. If a source has more, each waits longer.
const (
	rightsInterval = 30 * time.Second
	rightsWatches  = 200
)

// checkRights checks until ctx ends whether the watch may still be opened. The API server does not end a watch whose right was
// revoked: without the check that shows only at the next opening, minutes later.
func (w *watcher) checkRights(ctx context.Context) {
	for {
		select {
		case <-time.After(wait.Jitter(rightsInterval*time.Duration(1+w.siblings()/rightsWatches), 1)):
		case <-ctx.Done():
			return
		}
		missing, err := w.collection.missingRight(ctx)
		if err != nil { // an outage shows elsewhere; where reviews are forbidden, the next opening has to do
			w.logger.Debug("cannot check the rights of the watch", "err", err)
			continue
		}
		w.health.checked(missing)
	}
}

// missingRight returns the verb that the API server does not grant, or an empty string.
func (c *collection) missingRight(ctx context.Context) (string, error) {
	for _, verb := range []string{"list", "watch"} {
		if granted, err := c.client.Granted(ctx, c.attributes(verb)); err != nil || !granted {
			return verb, err
		}
	}
	return "", nil
}

// attributes are those by which the API server authorizes the requests themselves (requestinfo.go). An authorizer may grant
// requests by their other selectors, too; before Kubernetes 1.31 authorization ignores selectors, in requests and in reviews.
func (c *collection) attributes(verb string) map[string]any {
	attributes := map[string]any{
		"namespace": c.namespace, "verb": verb,
		"group": c.resource.Group, "version": c.resource.Version, "resource": c.resource.Resource,
	}
	if c.labelSelector != "" {
		attributes["labelSelector"] = map[string]string{"rawSelector": c.labelSelector}
	}
	if c.fieldSelector != "" {
		attributes["fieldSelector"] = map[string]string{"rawSelector": c.fieldSelector}
	}
	if name := selectedName(c.fieldSelector); name != "" {
		attributes["name"] = name
	}
	return attributes
}
