package config

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Entry is a resource of a source, by the index of the source and its own.
type Entry struct{ Source, Resource int }

// Overlaps returns the resources by which a pipeline would take objects a second time, each behind the first one that has these objects, too.
func (c *Config) Overlaps(p *Pipeline) (pairs [][2]Entry) {
	var taken []Entry
	for i, source := range c.Sources {
		if !slices.Contains(p.Sources, source.Name) {
			continue
		}
		for j := range source.Resources {
			this := Entry{i, j}
			if first := slices.IndexFunc(taken, func(e Entry) bool { return c.overlap(e, this) }); first >= 0 {
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
	one, other := &c.Sources[a.Source], &c.Sources[b.Source]
	r, s := one.Resources[a.Resource], other.Resources[b.Resource]
	unresolved := func(r schema.GroupVersionResource) bool { return r.Version == "" && !delta.IsWildcard(r) }
	switch {
	case r == s:
		return r.Resource != "" // else it could not be read
	case a.Source == b.Source, unresolved(r), unresolved(s), !delta.IsWildcard(r) && !delta.IsWildcard(s):
		return false
	default:
		return r.Group == s.Group && !slices.Contains(one.Excluded(), s.GroupResource()) && !slices.Contains(other.Excluded(), r.GroupResource())
	}
}
