package source

import (
	"encoding/json"
	"slices"

	"github.com/kubeferry/kubeferry/delta"
)

// state is what of a watch outlives the process: where it stands, what exists there, and who was told.
type state struct {
	known    *knownSet
	position string
	// complete is set once a state was read to its end: from then on an object that a reading brings is news.
	complete bool
	// served are the takers that were told of everything in the known set.
	served []string

	changed bool // since the last capture
}

// unserved returns the takers that were not told of what is known; all of them if again is set.
func (s *state) unserved(takers []string, again bool) []string {
	if again {
		return takers
	}
	var unserved []string
	for _, name := range takers {
		if !slices.Contains(s.served, name) {
			unserved = append(unserved, name)
		}
	}
	return unserved
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
	Served        []string         `json:"served"`
}

// Restored is what a store kept of a watch.
type Restored struct {
	// Meta is a [Meta] as JSON; empty if nothing was kept.
	Meta  []byte
	Known []delta.Known
}

// Store gives back what was kept of a watch.
type Store interface {
	Watch(id string) (Restored, error)
	// Clean says that the last run ended with a last commit.
	Clean() bool
}

// Restore begins where the store says. It must be called before Run, and makes the source keep track of what the
// next Capture returns.
func (s *Source) Restore(store Store) error {
	for _, w := range s.watches {
		if err := w.restore(store); err != nil {
			return err
		}
	}
	return nil
}

// Capture returns what changed since the last call, watch by watch. It is called while nothing is being handed over.
func (s *Source) Capture() []delta.WatchChange {
	var changes []delta.WatchChange
	for _, w := range s.watches {
		if change, ok := w.capture(); ok {
			changes = append(changes, change)
		}
	}
	return changes
}

// WatchIDs are the ids of the source's watches.
func (s *Source) WatchIDs() []string {
	var ids []string
	for _, w := range s.watches {
		ids = append(ids, w.id)
	}
	return ids
}

func (w *watcher) restore(store Store) error {
	w.state.known = newKnownSet(true)
	restored, err := store.Watch(w.id)
	if err != nil || len(restored.Meta) == 0 {
		return err
	}
	var meta Meta
	if err := json.Unmarshal(restored.Meta, &meta); err != nil {
		return err
	}
	w.state.position, w.state.complete, w.state.served = meta.Position, meta.Complete, meta.Served
	for _, object := range restored.Known {
		w.state.known.restore(object)
		if object.Namespace != "" && !w.namespaces.Match(object.Namespace) { // excluded since: forgotten, not deleted
			delete(w.state.known.objects, keyOfKnown(object))
			w.state.known.mark(keyOfKnown(object))
		}
	}
	w.unclean = !store.Clean()
	w.resumed = w.state.position != ""
	// What was not selected before and is now has to be read; so have the takers who know nothing yet.
	widened := !sameNamespaces(meta.Namespaces, w.namespaces)
	w.again = w.resumed && w.snapshot == SnapshotAlways
	owed := len(w.state.unserved(w.handler.Takers(), w.again)) > 0
	w.fill = w.resumed && (widened || owed && w.snapshot != SnapshotNever)
	return nil
}

func sameNamespaces(a, b delta.Namespaces) bool {
	return slices.Equal(a.Include, b.Include) && slices.Equal(a.Exclude, b.Exclude)
}

func (w *watcher) capture() (delta.WatchChange, bool) {
	if !w.state.changed {
		return delta.WatchChange{}, false
	}
	w.state.changed = false
	change := delta.WatchChange{Watch: w.id}
	change.Put, change.Remove = w.state.known.capture()
	meta, err := json.Marshal(Meta{
		Source: w.source, Resource: delta.ResourceName(w.collection.resource), Namespace: w.collection.namespace,
		LabelSelector: w.collection.labelSelector, FieldSelector: w.collection.fieldSelector, Namespaces: w.namespaces,
		Position: w.state.position, Complete: w.state.complete, Served: w.state.served,
	})
	if err != nil {
		panic(err) // a struct of strings
	}
	change.Meta = meta
	return change, true
}
