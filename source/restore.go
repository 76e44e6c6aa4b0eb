package source

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

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
// record what the next Capture returns. A watch goes on only from the one of the same source, resource and namespace. It returns
// the watches of the last run that are not configured any more, by their ids. Watches that an edit of the configuration ends run once more, to
// send their last records; they are not in the result.
func Restore(store Store, sources ...*Source) (ended map[string]Meta, err error) {
	ended = map[string]Meta{}
	var seen uint64
	err = store.Watches(func(id string, text []byte) error {
		var meta Meta
		if err := json.Unmarshal(text, &meta); err != nil {
			return fmt.Errorf("what is kept of the watch %s: %w", id, err)
		}
		ended[id] = meta
		seen = max(seen, ordinary(meta.Seen))
		return nil
	})
	if err != nil {
		return nil, err
	}
	var watches []*watcher
	for _, s := range sources {
		s.restoreSelected(store, ended)
		watches = append(watches, s.watches...)
	}
	kept := map[string]Meta{}
	edited := false // also by filters: what left them may pass again in the same version
	for _, s := range sources {
		for _, w := range s.restoreEnded(ended, sources) {
			watches, edited = append(watches, w), true
		}
	}
	for _, w := range watches {
		w.keepIn(store)
		if meta, ok := ended[w.id]; ok {
			kept[w.id] = meta
			if !w.outdated { // another watch may follow it in some of the pipelines
				delete(ended, w.id)
			}
			edited = edited || w.edited(&meta)
		} else {
			edited = edited || seen > 0
		}
	}
	edited = edited || len(ended) > 0
	for _, w := range watches {
		if edited || w.options.HistoryLost {
			w.state.Raise = &raise{w.options.Offset.Current(), seen}
		}
		if last, ok := kept[w.id]; ok {
			if w.state.Raise == nil { // a run that ended at once did not raise it
				w.state.Raise = last.Raise
			}
			if err := w.restore(store, &last); err != nil {
				return nil, err
			}
		} else if w.options.HistoryLost || w.follows(ended) {
			w.state.Gap = delta.GapLost
		}
	}
	for _, s := range sources {
		if s.selection != nil {
			s.selection.before, s.selection.raises = maps.Clone(ended), seen > 0 || s.options.HistoryLost
		}
	}
	maps.DeleteFunc(ended, func(id string, _ Meta) bool {
		_, runs := kept[id]
		return runs
	})
	return ended, nil
}

// restoreEnded adds the watches of the last run that an edit of the source ends: a resource or a namespace is not listed any more. Each of these
// watches runs once more, and only ends: see leave. It sends nothing to a pipeline that another watch has the resource for now: the mark would
// hide what that watch sends.
func (s *Source) restoreEnded(last map[string]Meta, sources []*Source) (added []*watcher) {
	for id, meta := range last {
		resource, err := delta.ParseResource(meta.Resource)
		if meta.Source != s.options.Name || err != nil || slices.ContainsFunc(s.watches, func(w *watcher) bool { return w.id == id }) {
			continue
		}
		w := s.newWatch(resource, scope{namespace: meta.Namespace, namespaces: meta.Namespaces})
		for n, pipeline := range s.options.Pipelines {
			if slices.ContainsFunc(sources, func(other *Source) bool { return other.watchesSome(resource, meta.Namespace, pipeline) }) {
				w.elsewhere |= 1 << n
			}
		}
		if w.elsewhere == s.options.all() {
			continue
		}
		w.outdated, w.health.later = true, true
		w.leaving.Store(true)
		added = append(added, w)
	}
	s.watches = append(s.watches, added...)
	return added
}

// watchesSome reports whether a source watches some of a resource in a namespace, or in all if that is empty, for a pipeline, or may do so.
func (s *Source) watchesSome(resource schema.GroupVersionResource, namespace, pipeline string) bool {
	if !slices.Contains(s.options.Pipelines, pipeline) || !s.options.covered(resource) && !slices.Contains(s.options.named(), resource) {
		return false
	}
	return s.options.NamespaceSelector != "" || slices.ContainsFunc(scopes(s.options.Namespaces, ""), func(one scope) bool {
		return overlap(one.namespace, namespace)
	})
}

// overlap reports whether two watches of a resource, each in a namespace or in all, have objects in common.
func overlap(namespace, other string) bool {
	return namespace == other || namespace == "" || other == ""
}

// keepIn makes a watch keep its state in the state directory.
func (w *watcher) keepIn(store Store) {
	w.store, w.state.known, w.state.changed = store, newKnownSet(true, w.options.Previous), true
}

// edited reports whether the configuration of a watch differs from that in the last run.
func (w *watcher) edited(last *Meta) bool {
	return !last.sameSelection(&w.state.Meta) || !slices.Equal(last.Pipelines, w.options.Pipelines) ||
		w.options.Filters != nil && !slices.Equal(last.Filters, w.options.Filters)
}

// follows reports whether one of the watches that have ended had the resource for a pipeline that takes it from w now. What changed between
// the two is not known.
func (w *watcher) follows(ended map[string]Meta) bool {
	for _, last := range ended {
		if last.Resource == w.state.Resource && overlap(last.Namespace, w.state.Namespace) && slices.ContainsFunc(last.Pipelines, func(pipeline string) bool {
			return slices.Contains(w.options.Pipelines, pipeline)
		}) {
			return true
		}
	}
	return false
}

// restore begins where the watch was in the last run.
func (w *watcher) restore(store Store, last *Meta) error {
	s := w.state
	s.Position, s.Sent, s.Resume, s.Seen, s.Restored, s.Begun = last.Position, last.Sent, last.Resume, last.Seen, last.Restored, last.Begun
	s.Gap, s.Reselected, s.Gone, s.Absent, s.Defined = last.Gap, last.Reselected, last.Gone, last.Absent, last.Defined
	s.APIVersion, s.Kind, s.Named = last.APIVersion, last.Kind, last.Named
	s.Doubt = last.Doubt
	w.restoreSnapshots(store, last)
	if !store.Clean() || w.options.HistoryLost {
		s.doubtUntil("", w.options.all())
		s.Begun = s.Begun || s.Position == "" && !s.Absent
	}
	s.Reselected = s.Reselected || !last.sameSelectors(&s.Meta)
	switch {
	case w.options.HistoryLost:
		s.readAnew(delta.GapLost, w.snapshotted())
	case !last.sameSelection(&s.Meta):
		s.readAnew(delta.GapEdited, w.snapshotted())
	case !store.Clean() && s.Gap != "": // the killed run may have sent what this reading does not find any more
		s.readAnew(s.Gap, w.snapshotted())
	case s.Position == "" && s.Begun:
		s.readAnew(delta.GapLost, 0)
	}
	known := w.known()
	known.era = last.Era
	var going PipelineSet // the snapshots that go on
	for n, pipeline := range w.options.Pipelines {
		if snapshot := w.state.Snapshots[pipeline]; snapshot.Begun {
			known.began[n] = snapshot.Era
			going |= 1 << n
		}
	}
	err := store.Known(w.id, func(object delta.Known) {
		v := restoredViews(&object, last, w.options.Pipelines)
		v.due &= going
		changed := uint64(v.filtered) != object.Filtered || uint64(v.had) != object.Had || v.due != known.dueOf(PipelineSet(object.Due), object.Era)&going
		if object.Retained && (last.RetainPolicy != s.RetainPolicy || w.options.RetainFor&^v.filtered == 0) { // what was cut out or redacted does not come back
			object.Retained, changed = false, true
		}
		known.restore(&object, v, changed)
	})
	if err != nil {
		return err
	}
	w.health.restored = s.Position != ""
	w.health.active(time.Time{}, s.Position, w.known().len())
	return nil
}

// snapshotted are the pipelines that get a snapshot when the state is read anew.
func (w *watcher) snapshotted() PipelineSet {
	if w.options.Snapshot == delta.SnapshotNever {
		return 0
	}
	return w.options.all()
}

// restoreSnapshots goes on with the snapshots of the last run. A snapshot begins for the pipelines that did not have the objects, for those for
// which it is not certain any more what was sent, or what of, and for all if they get a snapshot at every start.
func (w *watcher) restoreSnapshots(store Store, last *Meta) {
	for _, pipeline := range w.options.Pipelines {
		snapshot, pending := last.Snapshots[pipeline]
		switch {
		case last.Position != "" && w.options.Snapshot == delta.SnapshotAlways:
			w.state.beginAnew(pipeline, snapshot)
		case pending && snapshot.Begun && !snapshot.OnDemand && store.Clean() && (last.Gap == "" || last.Position == "") && last.filtersOf(pipeline) == w.state.filtersOf(pipeline):
			w.state.setSnapshot(pipeline, snapshot)
		case pending, !slices.Contains(last.Pipelines, pipeline):
			w.state.beginAnew(pipeline, snapshot)
		}
	}
}
