package source

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Store is what the last run kept.
type Store interface {
	// Watches calls yield with the id and the [Meta], as JSON, of each watch that something was kept of.
	Watches(yield func(id string, meta []byte) error) error
	// Known calls yield with each object of a watch's known set.
	Known(id string, yield func(delta.Known)) error
	// Previous returns what is retained of an object of a watch, compressed; nil for nothing.
	Previous(id, namespace, name string) ([]byte, error)
	// Clean reports whether the last run ended with a last commit.
	Clean() bool
}

// Restore begins where the last run ended. It must be called before Run, and makes the source record what the next Capture
// returns.
func (s *Source) Restore(store Store) error {
	kept := map[string]Meta{}
	err := store.Watches(func(id string, text []byte) error {
		var meta Meta
		if err := json.Unmarshal(text, &meta); err != nil {
			return fmt.Errorf("what is kept of the watch %s: %w", id, err)
		}
		kept[id] = meta
		return nil
	})
	if err != nil {
		return err
	}
	for _, w := range s.watches {
		w.store, w.state.known = store, newKnownSet(true, s.options.Previous)
		if ids := s.predecessors(w, kept); len(ids) > 0 {
			if err := w.restore(store, kept, ids); err != nil {
				return err
			}
		}
	}
	return nil
}

// predecessors returns the ids of the watches whose place w takes, mostly its own. A source that includes plain namespaces
// has a watch for each, one with globs a watch of the whole cluster. Going from one to the other makes other watches of what
// may be the same objects: they begin with what the old ones knew, so that nothing that was deleted meanwhile is forgotten.
func (s *Source) predecessors(w *watcher, kept map[string]Meta) []string {
	if _, ok := kept[w.id]; ok {
		return []string{w.id}
	}
	var ids []string
	for id, meta := range kept {
		// The id is made of all that has to be the same. Watches of two namespaces have nothing in common.
		same := meta.Resource == w.state.Resource && id == digest(&s.options, w.collection.resource, meta.Namespace)
		if same && (meta.Namespace == "" || w.state.Namespace == "") {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// restore begins where the watches with these ids were in the last run.
func (w *watcher) restore(store Store, kept map[string]Meta, ids []string) error {
	last := kept[ids[0]]
	for _, id := range ids[1:] {
		last.merge(kept[id])
	}
	inherits := ids[0] != w.id
	otherPolicy := last.RetainPolicy != w.state.RetainPolicy
	w.state.Position, w.state.Complete, w.state.Refused = last.Position, last.Complete, last.Refused
	w.state.Partial = last.Partial || inherits || !sameNamespaces(last.Namespaces, w.namespaces)
	w.state.Unclean = last.Unclean || !store.Clean()
	w.state.APIVersion, w.state.Kind = last.APIVersion, last.Kind
	w.state.changed = true
	w.resumed = w.state.Position != ""
	lacks := w.state.Partial
	for _, id := range ids {
		meta := kept[id]
		err := store.Known(id, func(object delta.Known) {
			if !w.selects(object.Namespace) { // excluded since: forgotten, not deleted
				w.state.known.remove(keyOfKnown(&object))
				return
			}
			v := restoredViews(&object, &meta, w.options.Pipelines)
			changed := inherits || uint64(v.filtered) != object.Filtered || uint64(v.due) != object.Due
			needed := w.options.RetainFor&^v.filtered != 0
			// What was cut out or redacted does not come back; and what is retained is found under the watch's own id only.
			if object.Retained && (otherPolicy || inherits || !needed) {
				object.Retained, changed = false, true
			}
			lacks = lacks || needed && !object.Retained
			if w.resumed && w.options.Snapshot == SnapshotAlways {
				v.due = w.options.all()
			}
			lacks = lacks || v.due != 0
			w.state.known.restore(&object, v, changed)
		})
		if err != nil {
			return err
		}
	}
	w.health.active(time.Time{}, w.state.Position, w.state.known.len())
	w.fill = w.resumed && lacks
	return nil
}

// severalPositions is why a watch that follows several others cannot go on from a position: each had its own.
const severalPositions = "the source's namespaces changed, and with them its watches"

// merge adds what is kept of another watch, which has no object in common with this one.
func (m *Meta) merge(other Meta) {
	m.Complete, m.Unclean, m.Refused = m.Complete && other.Complete, m.Unclean || other.Unclean, m.Refused+other.Refused
	if m.RetainPolicy != other.RetainPolicy {
		m.RetainPolicy = "mixed" // no pipelines have this policy: all of it is dropped
	}
	if m.Position != other.Position {
		m.Refused = severalPositions
		if order, err := resourceversion.CompareResourceVersion(m.Position, other.Position); err == nil && order > 0 {
			m.Position = other.Position
		}
	}
}

func sameNamespaces(a, b delta.Namespaces) bool {
	return slices.Equal(a.Include, b.Include) && slices.Equal(a.Exclude, b.Exclude)
}
