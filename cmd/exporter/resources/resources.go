// Package resources finds the resources that names stand for, as kubectl does.
package resources

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/source"
)

// Catalog is what an API server serves.
type Catalog struct {
	served []source.Served
	failed []schema.GroupVersion // cannot be read
}

// Read reads the catalog of an API server.
func Read(ctx context.Context, cluster *rest.Config) (*Catalog, error) {
	client, err := source.NewClient(cluster, false)
	if err != nil {
		return nil, err
	}
	served, failed, err := client.Served(ctx)
	return &Catalog{served, failed}, err
}

// Of makes a catalog of resources whose plurals alone are known.
func Of(known []schema.GroupVersionResource) *Catalog {
	c := &Catalog{}
	for _, r := range known {
		c.served = append(c.served, source.Served{GroupVersionResource: r, Names: []string{r.Resource}})
	}
	return c
}

// All returns each resource once, in the version that the API server prefers.
func (c *Catalog) All() []source.Served {
	var all []source.Served
	for _, s := range c.served {
		if !slices.ContainsFunc(all, func(other source.Served) bool { return other.GroupResource() == s.GroupResource() }) {
			all = append(all, s)
		}
	}
	return all
}

// Names returns a name of each resource, for completion.
func (c *Catalog) Names() (names []string) {
	for _, s := range c.All() {
		names = append(names, s.GroupResource().String())
	}
	return names
}

// Find returns the resources that names stand for, each once: apps/v1/deployments, deployments.v1.apps, deployments.apps,
// deployments, deployment or deploy. A name may be several, joined by commas.
func (c *Catalog) Find(names []string) (found []source.Served, err error) {
	for _, name := range strings.Split(strings.Join(names, ","), ",") {
		one, err := c.find(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(found, func(s source.Served) bool { return s.GroupVersionResource == one.GroupVersionResource }) {
			found = append(found, one)
		}
	}
	return found, nil
}

func (c *Catalog) find(name string) (source.Served, error) {
	var found []source.Served // in each group, the first version
	for _, s := range c.served {
		if named(s, strings.ToLower(name)) && !slices.ContainsFunc(found, func(other source.Served) bool { return other.Group == s.Group }) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 1: // of a group that was read in part, another version may be the preferred one
		if slices.ContainsFunc(c.failed, func(gv schema.GroupVersion) bool { return gv.Group == found[0].Group }) {
			return source.Served{}, c.unknown(name)
		}
		return found[0], nil
	case 0:
		return source.Served{}, c.unknown(name)
	}
	var fit []string
	for _, s := range found {
		fit = append(fit, delta.ResourceName(s.GroupVersionResource))
	}
	return source.Served{}, fmt.Errorf("%q stands for %s: name one of them", name, strings.Join(fit, " and for "))
}

// Resolve puts the resources in the place of their names in a configuration. It is an error if a pipeline would take one twice.
func (c *Catalog) Resolve(loaded *config.Config) error {
	for _, s := range loaded.Sources {
		for n, r := range s.Resources {
			if r.Version != "" || delta.IsWildcard(r) {
				continue
			}
			found, err := c.find(r.Resource)
			if err != nil {
				return fmt.Errorf("source %q: %w", s.Name, err)
			}
			s.Resources[n] = found.GroupVersionResource
		}
	}
	for _, p := range loaded.Pipelines {
		if pairs := loaded.Overlaps(&p); len(pairs) > 0 {
			return fmt.Errorf("pipeline %q takes %s twice, under two names", p.Name, delta.ResourceName(loaded.Resource(pairs[0][1])))
		}
	}
	return nil
}

// Options are what a configured source watches.
func Options(s *config.Source) source.Options {
	return source.Options{
		Name: s.Name, Resources: s.Resources, Exclude: s.Exclude, Namespaces: s.Namespaces.Namespaces, NamespaceSelector: s.Namespaces.Selector,
		LabelSelector: s.LabelSelector, FieldSelector: s.FieldSelector, Snapshot: s.Snapshot, Check: s.Check,
	}
}

// named reports whether a name stands for a resource.
func named(s source.Served, name string) bool {
	slashes := strings.Split(name, "/")
	if len(slashes) > 1 {
		base := slashes[len(slashes)-1]
		return slices.Contains(s.Names, base) && s.GroupVersion().String() == strings.Join(slashes[:len(slashes)-1], "/")
	}
	base, in, _ := strings.Cut(name, ".")
	version, group, _ := strings.Cut(in, ".")
	return base != "" && slices.Contains(s.Names, base) && (in == "" || in == s.Group || version == s.Version && group == s.Group)
}

func (c *Catalog) unknown(name string) error {
	hint := ""
	base, _, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ".")
	var known []string
	for _, s := range c.served {
		if known = append(known, s.Names...); slices.Contains(s.Names, base) { // in another group or version
			hint = "; did you mean " + delta.ResourceName(s.GroupVersionResource) + "?"
		}
	}
	if kind, object, slash := strings.Cut(name, "/"); slash && slices.Contains(known, kind) { // kubectl's form for one object
		hint = fmt.Sprintf("; did you mean %s with the field selector metadata.name=%s?", kind, object)
	}
	if near := expr.Nearest(base, known); hint == "" && near != "" {
		hint = fmt.Sprintf("; did you mean %s?", near)
	}
	if len(c.failed) > 0 {
		hint += fmt.Sprintf("; %v cannot be read", c.failed)
	}
	return fmt.Errorf("the API server has no resource %q that can be watched%s", name, hint)
}
