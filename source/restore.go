package source

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
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

// Restore makes sources begin where the last run ended. It must be called before Run, with all of them, and makes them
// record what the next Capture returns. It returns what no source goes on with: the ids of watches of the last run whose
// resource none of them has, with what was kept of each.
func Restore(store Store, sources ...*Source) (forgotten map[string]Meta, err error) {
	kept := map[string]Meta{}
	err = store.Watches(func(id string, text []byte) error {
		var meta Meta
		if err := json.Unmarshal(text, &meta); err != nil {
			return fmt.Errorf("what is kept of the watch %s: %w", id, err)
		}
		kept[id] = meta
		return nil
	})
	if err != nil {
		return nil, err
	}
	var watches []*watcher
	for _, s := range sources {
		watches = append(watches, s.watches...)
	}
	heirs, forgotten := findHeirs(watches, kept)
	for _, w := range watches {
		w.store, w.state.known = store, newKnownSet(true, w.options.Previous)
		if err := w.restore(store, kept, heirs); err != nil {
			return nil, err
		}
	}
	return forgotten, nil
}

// restore begins where the watches that w is an heir of were in the last run.
func (w *watcher) restore(store Store, kept map[string]Meta, heirs map[string][]*watcher) error {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(heirs)) {
		if slices.Contains(heirs[id], w) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	// Its own position, if it has one, holds for what it selects; what it only adopts is looked up.
	last, own := kept[w.id]
	if !own {
		last = kept[ids[0]]
		for _, id := range ids[1:] {
			last.merge(kept[id])
		}
	}
	w.state.Position, w.state.Complete, w.state.Refused = last.Position, last.Complete, last.Refused
	if last.Begun && last.Position == "" && !store.Clean() && w.options.Snapshot != SnapshotNever {
		w.state.Refused = cmp.Or(w.state.Refused, firstStateInterrupted)
	}
	w.state.Reselected = last.Reselected || !own || len(ids) > 1 || !last.sameSelection(&w.state.Meta)
	w.state.Partial = last.Partial || w.state.Reselected
	w.state.Unclean = last.Unclean || !store.Clean()
	w.state.APIVersion, w.state.Kind = last.APIVersion, last.Kind
	w.state.changed = true
	w.resumed = w.state.Position != ""
	lacks := w.state.Partial
	for _, id := range ids {
		meta := kept[id]
		otherPolicy := meta.RetainPolicy != w.state.RetainPolicy
		err := store.Known(id, func(object delta.Known) {
			if !w.inherits(heirs[id], object.Namespace) {
				return
			}
			v := restoredViews(&object, &meta, w.options.Pipelines)
			changed := id != w.id || uint64(v.filtered) != object.Filtered || uint64(v.due) != object.Due
			needed := w.options.RetainFor&^v.filtered != 0
			// What was cut out or redacted does not come back; and what is retained is found under the watch's own id only.
			if object.Retained && (otherPolicy || id != w.id || !needed) {
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

// firstStateInterrupted is why there is a gap before a watch that has no position.
const firstStateInterrupted = "the last run was killed while it sent the first state: what it sent and was deleted since is not known"

// severalPositions is why a watch that follows several others cannot go on from a position: each had its own.
const severalPositions = "the configuration was edited, and with it the watches of the resource"

// merge adds what is kept of another watch.
func (m *Meta) merge(other Meta) {
	m.Complete, m.Unclean, m.Refused = m.Complete && other.Complete, m.Unclean || other.Unclean, m.Refused+other.Refused
	if m.Position != other.Position {
		m.Refused = severalPositions
		if order, err := resourceversion.CompareResourceVersion(m.Position, other.Position); err == nil && order > 0 {
			m.Position = other.Position
		}
	}
}

// sameSelection reports whether two watches select the same objects within their scope.
func (m *Meta) sameSelection(other *Meta) bool {
	return m.sameSelectors(other) && slices.Equal(m.Namespaces.Include, other.Namespaces.Include) &&
		slices.Equal(m.Namespaces.Exclude, other.Namespaces.Exclude)
}

func (m *Meta) sameSelectors(other *Meta) bool {
	return m.LabelSelector == other.LabelSelector && m.FieldSelector == other.FieldSelector
}
