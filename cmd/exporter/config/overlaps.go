package config

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Entry is a resource of a source, by the index of the source and its own.
type Entry struct{ Source, Resource int }

// Resource returns the resource of an entry.
func (c *Config) Resource(e Entry) schema.GroupVersionResource {
	return c.Sources[e.Source].Resources[e.Resource]
}

// Overlaps returns the resources by which a pipeline would take objects a second time, each behind the first one that has these objects, too.
func (c *Config) Overlaps(p *Pipeline) [][2]Entry { return c.pairs(p, c.overlap) }

// pairs returns the resources of a pipeline that are the same in some way as one before, each behind the first such one.
func (c *Config) pairs(p *Pipeline, same func(a, b Entry) bool) (pairs [][2]Entry) {
	var taken []Entry
	for i, source := range c.Sources {
		if !slices.Contains(p.Sources, source.Name) {
			continue
		}
		for j := range source.Resources {
			this := Entry{i, j}
			if first := slices.IndexFunc(taken, func(e Entry) bool { return same(e, this) }); first >= 0 {
				pairs = append(pairs, [2]Entry{taken[first], this})
			}
			taken = append(taken, this)
		}
	}
	return pairs
}

// overlap reports whether two entries stand for the same objects. Of a name that is not resolved yet this is not known. In one source, a
// wildcard leaves out what is named beside it.
func (c *Config) overlap(a, b Entry) bool {
	r, s := c.Resource(a), c.Resource(b)
	unresolved := func(r schema.GroupVersionResource) bool { return r.Version == "" && !delta.IsWildcard(r) }
	switch {
	case r == s:
		return r.Resource != "" // else it could not be read
	case a.Source == b.Source, unresolved(r), unresolved(s), !delta.IsWildcard(r) && !delta.IsWildcard(s):
		return false
	default:
		return r.Group == s.Group && !slices.Contains(c.Sources[a.Source].Exclude, s.GroupResource()) &&
			!slices.Contains(c.Sources[b.Source].Exclude, r.GroupResource())
	}
}

// underTwoNames reports whether two entries are one resource under two names in the API.
func (c *Config) underTwoNames(a, b Entry) bool {
	r, s := c.Resource(a), c.Resource(b)
	objects := func(r schema.GroupVersionResource) schema.GroupResource {
		if r.Group == "events.k8s.io" && r.Resource == "events" {
			r.Group = ""
		}
		return r.GroupResource()
	}
	return r != s && !delta.IsWildcard(r) && r.Version != "" && s.Version != "" && objects(r) == objects(s)
}
