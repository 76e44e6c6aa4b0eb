package source

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// A source that includes plain namespaces has a watch for each, one with globs a watch of the whole cluster. Going from
// one to the other makes other watches of what may be the same objects: they begin with what the old ones knew, so that
// nothing that was deleted meanwhile is forgotten.

// inherited is why a watch that follows several others cannot go on from a position: each had its own.
const inherited = "the source's namespaces changed, and with them its watches"

// predecessors returns the ids of the watches whose place w takes: mostly its own, else those of the same objects.
func (s *Source) predecessors(w *watcher, kept map[string]Meta) []string {
	if _, ok := kept[w.id]; ok {
		return []string{w.id}
	}
	var ids []string
	for id, meta := range kept {
		// The id says that all but the namespace is the same. Watches of two namespaces have nothing in common.
		same := meta.Resource == delta.ResourceName(w.collection.resource) && id == digest(&s.options, w.collection.resource, meta.Namespace)
		if same && (meta.Namespace == "" || w.collection.namespace == "") {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// mergeMeta makes one of what is kept of two watches that have no object in common.
func mergeMeta(a, b Meta) Meta {
	a.Complete, a.Unclean, a.Refused = a.Complete && b.Complete, a.Unclean || b.Unclean, a.Refused+b.Refused
	if a.RetainPolicy != b.RetainPolicy {
		a.RetainPolicy = "mixed" // no pipelines have this policy: all of it is dropped
	}
	if a.Position != b.Position {
		a.Refused = inherited
		if order, err := resourceversion.CompareResourceVersion(a.Position, b.Position); err == nil && order > 0 {
			a.Position = b.Position
		}
	}
	return a
}
