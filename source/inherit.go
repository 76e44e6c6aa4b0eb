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

// inherit makes w begin with what is kept of the watches that it takes the place of, if there are any.
func (s *Source) inherit(w *watcher, store Store, kept map[string]Meta) error {
	var ids []string
	for id, meta := range kept {
		// The id says that all but the namespace is the same. Watches of two namespaces have nothing in common.
		same := meta.Resource == delta.ResourceName(w.collection.resource) && id == digest(&s.options, w.collection.resource, meta.Namespace)
		if same && (meta.Namespace == "" || w.collection.namespace == "") {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	merged := kept[ids[0]]
	for _, id := range ids[1:] {
		merged = mergeMeta(merged, kept[id])
	}
	merged.Pipelines, merged.Served, merged.Partial = w.options.Pipelines, nil, true
	err := w.restore(merged, store.Clean(), func(yield func(delta.Known)) error {
		for _, id := range ids {
			meta := kept[id]
			err := store.Known(id, func(object delta.Known) {
				v := restoredViews(&object, &meta, w.options.Pipelines)
				object.Filtered, object.Due = uint64(v.filtered), uint64(v.due)
				yield(object)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	w.state.known.changeAll()
	return err
}

// mergeMeta makes one of what is kept of two watches that have no object in common.
func mergeMeta(a, b Meta) Meta {
	a.Complete, a.Unclean, a.Refused = a.Complete && b.Complete, a.Unclean || b.Unclean, a.Refused+b.Refused
	if a.RetainPolicy != b.RetainPolicy {
		a.RetainPolicy = ""
	}
	if a.Position != b.Position {
		a.Refused = inherited
		if order, err := resourceversion.CompareResourceVersion(a.Position, b.Position); err == nil && order > 0 {
			a.Position = b.Position
		}
	}
	return a
}
