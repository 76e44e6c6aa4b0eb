package source

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// state is what of a watch outlives the process: its position, what exists there, and which pipelines have it.
type state struct {
	known    *knownSet
	position string
	// complete is set once a state was read to its end: from then on an object that a reading brings is a change.
	complete bool
	// partial is set while namespaces are included that were not, and their objects have not all been read.
	partial bool
	// refused is why the server refused the position, from the gap until the state that closes it is complete. Meanwhile
	// the known set is ahead of the position: no watch may resume from there.
	refused string
	// unclean is set if a run ended without a last commit, and not all of the history has been read that it may have
	// sent beyond it.
	unclean bool
	kind    schema.GroupVersionKind

	changed  bool // since the last capture
	captured bool // by the commit in progress
}

// reset forgets everything but the known set.
func (s *state) reset() {
	s.position, s.complete = "", false
	s.partial, s.refused, s.unclean = false, "", false
	s.changed = true
}

// Meta is what is kept of a watch beside its known set, as JSON.
type Meta struct {
	Source        string           `json:"source"`
	Resource      string           `json:"resource"`
	Namespace     string           `json:"namespace,omitempty"`
	LabelSelector string           `json:"labelSelector,omitempty"`
	FieldSelector string           `json:"fieldSelector,omitempty"`
	Namespaces    delta.Namespaces `json:"namespaces"`
	Position      string           `json:"position,omitempty"`
	Complete      bool             `json:"complete"`
	Partial       bool             `json:"partial,omitempty"`
	Refused       string           `json:"refused,omitempty"`
	Unclean       bool             `json:"unclean,omitempty"`
	APIVersion    string           `json:"apiVersion,omitempty"`
	Kind          string           `json:"kind,omitempty"`
	RetainPolicy  string           `json:"kept,omitempty"`
	// Pipelines are those that the bits of known objects stand for.
	Pipelines []string `json:"takers,omitempty"`
	// Served is in older files only, which have no bits for it: the pipelines that had their whole snapshot.
	Served []string `json:"served,omitempty"`
}

// Store is what the last run kept.
type Store interface {
	// Watches calls yield with the id and the [Meta], as JSON, of each watch that something was kept of.
	Watches(yield func(id string, meta []byte) error) error
	// Known calls yield with each object of a watch's known set.
	Known(id string, yield func(delta.Known)) error
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
		w.state.known = newKnownSet(true)
		if ids := s.predecessors(w, kept); len(ids) > 0 {
			if err := w.restore(store, kept, ids); err != nil {
				return err
			}
		}
	}
	return nil
}

// Capture returns what changed since the last call, watch by watch. It is called while nothing is being sent.
// Exactly one call of Committed or Failed follows before the next Capture.
func (s *Source) Capture() []delta.WatchChange {
	var changes []delta.WatchChange
	for _, w := range s.watches {
		if change, ok := w.capture(); ok {
			changes = append(changes, change)
		}
	}
	return changes
}

// Committed is called when what Capture returned last is on disk.
func (s *Source) Committed() {
	for _, w := range s.watches {
		w.state.captured = false
		w.state.known.committed()
	}
}

// Failed says that what Capture returned last may not be on disk: the next Capture returns it again, as it is by then.
// It is called while nothing is being sent.
func (s *Source) Failed() {
	for _, w := range s.watches {
		w.state.changed = w.state.changed || w.state.captured
		w.state.captured = false
		w.state.known.failed()
	}
}

// WatchIDs are the ids of the source's watches.
func (s *Source) WatchIDs() []string {
	var ids []string
	for _, w := range s.watches {
		ids = append(ids, w.id)
	}
	return ids
}

// restore begins where the watches with these ids were in the last run.
func (w *watcher) restore(store Store, kept map[string]Meta, ids []string) error {
	meta := kept[ids[0]]
	for _, id := range ids[1:] {
		meta = mergeMeta(meta, kept[id])
	}
	inherits := ids[0] != w.id
	w.state.position, w.state.complete = meta.Position, meta.Complete
	w.state.partial = meta.Partial || inherits || !sameNamespaces(meta.Namespaces, w.namespaces)
	w.state.refused = meta.Refused
	w.state.unclean = meta.Unclean || !store.Clean()
	w.state.kind = schema.FromAPIVersionAndKind(meta.APIVersion, meta.Kind)
	w.state.changed = true
	w.resumed = w.state.position != ""
	otherPolicy := meta.RetainPolicy != w.options.RetainPolicy
	lacks := w.state.partial || otherPolicy && w.options.RetainPolicy != ""
	for _, id := range ids {
		meta := kept[id]
		err := store.Known(id, func(object delta.Known) {
			if !w.selects(object.Namespace) { // excluded since: forgotten, not deleted
				w.state.known.remove(keyOfKnown(&object))
				return
			}
			v := restoredViews(&object, &meta, w.options.Pipelines)
			changed := inherits || uint64(v.filtered) != object.Filtered || uint64(v.due) != object.Due
			if otherPolicy && object.Previous != nil { // what was cut out or redacted does not come back
				object.Previous, changed = nil, true
			}
			if w.resumed && w.options.Snapshot == SnapshotAlways {
				v.due = 1<<len(w.options.Pipelines) - 1
			}
			lacks = lacks || v.due != 0
			w.state.known.restore(&object, v, changed)
		})
		if err != nil {
			return err
		}
	}
	w.health.active(time.Time{}, w.state.position, w.state.known.len())
	w.fill = w.resumed && lacks
	return nil
}

func sameNamespaces(a, b delta.Namespaces) bool {
	return slices.Equal(a.Include, b.Include) && slices.Equal(a.Exclude, b.Exclude)
}

func (w *watcher) capture() (delta.WatchChange, bool) {
	if !w.state.changed && len(w.state.known.changed) == 0 {
		return delta.WatchChange{}, false
	}
	w.state.changed, w.state.captured = false, true
	change := delta.WatchChange{Watch: w.id}
	change.Put, change.Remove = w.state.known.capture()
	meta, err := json.Marshal(Meta{
		Source: w.options.Name, Resource: delta.ResourceName(w.collection.resource), Namespace: w.collection.namespace,
		LabelSelector: w.collection.labelSelector, FieldSelector: w.collection.fieldSelector, Namespaces: w.namespaces,
		Position: w.state.position, Complete: w.state.complete,
		Partial: w.state.partial, Refused: w.state.refused, Unclean: w.state.unclean,
		APIVersion: w.state.kind.GroupVersion().String(), Kind: w.state.kind.Kind,
		RetainPolicy: w.options.RetainPolicy, Pipelines: w.options.Pipelines,
	})
	if err != nil {
		panic(err) // a struct of strings
	}
	change.Meta = meta
	return change, true
}
