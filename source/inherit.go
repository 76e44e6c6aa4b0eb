package source

import (
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kubeferry/kubeferry/delta"
)

// A source that includes plain namespaces has a watch for each, one with globs a watch of the whole cluster. Going from
// one to the other makes other watches of what may be the same objects: they begin with what the old ones knew, so that
// nothing that was deleted meanwhile is forgotten.

// inherited is why a watch that follows several others cannot go on from a position: each had its own.
const inherited = "the source's namespaces changed, and with them its watches"

// inherit returns what is kept of the watches that w takes the place of, and whether there are any.
func (s *Source) inherit(w *watcher, store Store) (merged Restored, found bool, err error) {
	var ids []string
	err = store.Watches(func(id string, text []byte) error {
		var meta Meta
		if err := json.Unmarshal(text, &meta); err != nil {
			return err
		}
		// The id says that all but the namespace is the same. Watches of two namespaces have nothing in common.
		same := meta.Resource == delta.ResourceName(w.collection.resource) && id == digest(&s.options, w.collection.resource, meta.Namespace)
		if same && (meta.Namespace == "" || w.collection.namespace == "") {
			ids = append(ids, id)
		}
		return nil
	})
	if err != nil || len(ids) == 0 {
		return Restored{}, false, err
	}
	var all []Restored
	for _, id := range ids {
		restored, err := store.Watch(id)
		if err != nil {
			return Restored{}, false, err
		}
		all = append(all, restored)
	}
	merged, err = mergeRestored(all, w.handler.Takers())
	return merged, err == nil, err
}

// mergeRestored makes one of what is kept of watches that have no object in common.
func mergeRestored(all []Restored, takers []string) (Restored, error) {
	var merged Restored
	var meta Meta
	var sets takerSets
	for n, restored := range all {
		var m Meta
		if err := json.Unmarshal(restored.Meta, &m); err != nil {
			return Restored{}, err
		}
		passed := takerSets(m.Passed)
		for _, object := range restored.Known {
			object.Passed = sets.number(passed.names(object.Passed), takers)
			merged.Known = append(merged.Known, object)
		}
		if n == 0 {
			meta = m
			continue
		}
		meta.Served = slices.DeleteFunc(meta.Served, func(name string) bool { return !slices.Contains(m.Served, name) })
		meta.Complete, meta.Unclean, meta.Refused = meta.Complete && m.Complete, meta.Unclean || m.Unclean, meta.Refused+m.Refused
		if meta.Kept != m.Kept {
			meta.Kept = ""
		}
		if meta.Position != m.Position {
			meta.Refused = inherited
			if order, err := resourceversion.CompareResourceVersion(meta.Position, m.Position); err == nil && order > 0 {
				meta.Position = m.Position
			}
		}
	}
	meta.Passed, meta.Partial = sets, true
	text, err := json.Marshal(meta)
	merged.Meta = text
	return merged, err
}
