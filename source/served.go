package source

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Served is a resource that can be watched, in one version.
type Served struct {
	schema.GroupVersionResource
	// Names are its plural, its singular, its kind in lower case, and its short names.
	Names      []string
	Namespaced bool
}

// Served lists the resources that can be watched, each version of a group behind those that the API server prefers. failed has the
// group versions that could not be read, for example because an aggregated API server is away. If groups are named, it reads no others.
func (c *Client) Served(ctx context.Context, only ...string) (served []Served, failed []schema.GroupVersion, err error) {
	all, err := c.versions(ctx, only...)
	if err != nil {
		return nil, nil, fmt.Errorf("discover the resources: %w", err)
	}
	lists, errs := make([]*metav1.APIResourceList, len(all)), make([]error, len(all))
	var reading sync.WaitGroup
	for n, gv := range all {
		reading.Go(func() { lists[n], errs[n] = c.discover(ctx, gv) })
	}
	reading.Wait()
	for n, gv := range all {
		if errs[n] != nil {
			failed = append(failed, gv)
			continue
		}
		for _, r := range lists[n].APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "watch") {
				continue
			}
			served = append(served, Served{
				gv.WithResource(r.Name), append([]string{r.Name, r.SingularName, strings.ToLower(r.Kind)}, r.ShortNames...), r.Namespaced,
			})
		}
	}
	return served, failed, ctx.Err()
}
