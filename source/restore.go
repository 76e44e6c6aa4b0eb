package source

import (
	"cmp"
	"encoding/json"
	"errors"
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
	// KnownBehind returns objects of a watch's known set as the last commit wrote it, in an order of the store's, of which only
	// namespace and name count: limit of those behind one, or the first if that is nil, or fewer; none at the end. It may be called
	// at any time.
	KnownBehind(id string, after *delta.Known, limit int) ([]delta.Known, error)
	// Previous returns what is retained of an object of a watch, compressed; nil for nothing.
	Previous(id, namespace, name string) ([]byte, error)
	// Clean reports whether the last run ended with a last commit.
	Clean() bool
	// Floor returns 0 unless commits of earlier runs are lost. Then it returns how high these raised sequences, as far as that is
	// known, or 1.
	Floor() uint64
}

// Restore makes sources begin where the last run ended. It must be called before Run, with all of them, and makes them
// record what the next Capture returns. It returns the watches of the last run that have no heirs, by their ids: no
// pipeline that had their objects takes their resource any more.
func Restore(store Store, sources ...*Source) (forgotten map[string]Meta, err error) {
	kept := map[string]Meta{}
	err = store.Watches(func(id string, text []byte) error {
		var meta Meta
		var members struct{ Absent *bool }
		if err := errors.Join(json.Unmarshal(text, &meta), json.Unmarshal(text, &members)); err != nil {
			return fmt.Errorf("what is kept of the watch %s: %w", id, err)
		}
		if members.Absent == nil {
			meta.guessAbsent()
		}
		if !store.Clean() {
			meta.raiseEdited()
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
	for _, w := range watches {
		w.store, w.state.known = store, newKnownSet(true, w.options.Previous)
		// In a new epoch no sequence can be too low.
		w.state.Refused, w.state.Lost = w.options.HistoryLost, w.options.HistoryLost != "" && store.Floor() > 0
	}
	forgotten = map[string]Meta{}
	inherited := map[*watcher][]*lastWatch{}
	lasts := findHeirs(watches, kept)
	for _, last := range lasts {
		for _, w := range last.heirs {
			inherited[w] = append(inherited[w], last)
		}
		if len(last.heirs) == 0 {
			forgotten[last.id] = last.Meta
		}
	}
	for w, from := range inherited {
		if err := w.restore(store, from); err != nil {
			return nil, err
		}
	}
	for _, w := range watches {
		if err := w.continueBehindFilters(store, lasts); err != nil {
			return nil, err
		}
	}
	err = continueSequences(store, watches, lasts)
	floor := store.Floor()
	for _, w := range watches {
		w.behindLoss = floor > 0
		if floor > 1 { // beyond it by the changes since, and by a resource that went
			w.state.Edited, w.state.changed = max(w.state.Edited, floor+2*maxRaised), true
		}
	}
	return forgotten, err
}

// restore begins where watches of the last run were.
func (w *watcher) restore(store Store, from []*lastWatch) error {
	// What it adopts was perhaps not selected at its own position, and is looked up.
	own := slices.IndexFunc(from, func(l *lastWatch) bool { return l.id == w.id })
	if own > 0 {
		from[0], from[own] = from[own], from[0]
	}
	for _, l := range from {
		w.from = append(w.from, l.id)
	}
	last := from[0].Meta
	for _, l := range from[1:] {
		if own < 0 || !l.apart(w) {
			last.merge(l.Meta)
			continue
		}
		sent, err := l.highest(store) // its deletions are inferred as of the watch's own position
		if err != nil {
			return err
		}
		last.mergeApart(l.Meta)
		last.Edited = max(last.Edited, sent)
	}
	for _, l := range from {
		if l.Apart != "" && l.id != w.id { // what is known of w's namespace is perhaps not as of l's position
			last.merge(Meta{Position: l.Apart, Complete: true, Gone: last.Gone})
			last.Refused = cmp.Or(last.Refused, severalPositions)
		}
	}
	w.state.Position, w.state.Resume = last.Position, cmp.Or(last.Resume, last.Position) // older files have none
	w.state.Complete, w.state.Refused, w.state.Apart = last.Complete, last.Refused, last.Apart
	if w.options.Snapshot == delta.SnapshotNever {
		for _, l := range from {
			if l.Gone > 0 || l.Position == "" && (l.Complete || l.Absent) {
				w.absent = append(w.absent, l)
			}
		}
		w.state.Complete = w.state.Complete || last.Position == "" && len(w.absent) > 0
	} else if last.Position == "" {
		w.state.Complete = false // a source without snapshots has nothing to read at first
	}
	w.state.Edited, w.state.Gone, w.state.Reading, w.state.Absent = last.Edited, last.Gone, last.Reading, last.Absent
	w.state.Defined = last.Defined
	w.state.Begun = last.Begun && last.Position == ""
	w.state.Paused = w.state.Begun && (last.Paused || store.Clean())
	if last.Position == "" {
		if w.state.Begun && !w.state.Paused {
			w.state.Refused = cmp.Or(w.state.Refused, firstStateInterrupted)
		}
		w.state.Refused = cmp.Or(w.state.Refused, w.options.HistoryLost)
	}
	w.state.Partial = last.Partial || own < 0 || len(from) > 1 || !last.sameSelection(&w.state.Meta)
	if w.state.Partial {
		w.edit = newSnapshotID()
	}
	w.state.Unclean, w.state.Lost = last.Unclean || !store.Clean(), w.state.Lost || last.Lost
	w.state.Uncertain, w.state.Repetition = last.Uncertain, last.Repetition
	edited := func(l *lastWatch) bool { return !l.sameSelection(&w.state.Meta) || w.filtersDiffer(l) }
	unclean := func(l *lastWatch) bool {
		for _, snapshot := range l.Snapshots {
			if snapshot.Unclean {
				return true
			}
		}
		return w.state.Unclean
	}
	// The leader whose state is lost may have had another configuration.
	w.ambiguous = w.options.HistoryLost != "" || slices.ContainsFunc(from, edited) && slices.ContainsFunc(from, unclean)
	if w.ambiguous && slices.ContainsFunc(from, func(l *lastWatch) bool { return l.Position != "" }) {
		w.state.Uncertain, w.state.Repetition = cmp.Or(w.options.HistoryLost, killedAndEdited), newSnapshotID()
	}
	if w.state.Position == "" { // no history goes on: one record for both, before the first state
		w.state.Refused = cmp.Or(w.state.Refused, w.state.Uncertain)
	}
	w.state.APIVersion, w.state.Kind = last.APIVersion, last.Kind
	w.state.changed = true
	w.resumed = w.state.Position != ""
	lacks := w.state.Partial
	var due PipelineSet
	whole := w.restoreSnapshots(store, from, own >= 0)
	for _, l := range from {
		err := store.Known(l.id, func(object delta.Known) {
			to := l.pipelinesOf(w, object.Namespace)
			if to == 0 {
				if l.id == w.id { // kept here as well, it would differ from what its heirs have of it
					w.known().change(keyOfKnown(&object))
				}
				return
			}
			v := restoredViews(&object, &l.Meta, w.options.Pipelines)
			v.filtered |= w.options.all() &^ to
			if l.Gone > 0 && w.state.Gone == 0 && (l.Unclean || !store.Clean()) { // its DELETED may have been sent
				v.due |= w.options.all() &^ v.filtered
			}
			changed := l.id != w.id || uint64(v.filtered) != object.Filtered || uint64(v.due) != object.Due
			if known, exists := w.known().find(keyOfKnown(&object)); exists {
				v, changed = known.views.joined(v, own >= 0), true
				// The older version, or a pipeline that has only that one would not get the change.
				if versionNumber(known.version.ResourceVersion()) < versionNumber(object.Version.ResourceVersion()) {
					object.Version = known.version
				}
			}
			needed := w.options.RetainFor&^v.filtered != 0
			// What was cut out or redacted does not come back; and what is retained is found under the watch's own id only.
			if object.Retained && (l.RetainPolicy != w.state.RetainPolicy || l.id != w.id || !needed) {
				object.Retained, changed = false, true
			}
			lacks = lacks || needed && !object.Retained
			v.due &^= whole // until they begin
			due |= v.due
			w.state.known.restore(&object, v, changed)
		})
		if err != nil {
			return err
		}
	}
	w.health.restored = w.resumed
	w.health.active(time.Time{}, w.state.Position, w.state.known.len())
	w.fill = w.resumed && lacks
	w.restoreDue(due)
	for pipeline, snapshot := range w.state.Snapshots {
		snapshot.Unclean = w.state.Unclean || slices.ContainsFunc(from, func(l *lastWatch) bool { return l.Snapshots[pipeline].Unclean })
		w.state.setSnapshot(pipeline, snapshot)
	}
	return nil
}

// restoreSnapshots goes on with the snapshots of the watches of the last run, of which the first is the watch itself if own is
// set. It returns the pipelines whose snapshots begin: those that did not have the objects, those for which it is not certain any
// more what was sent, or what of, and all if they get a snapshot at every start.
func (w *watcher) restoreSnapshots(store Store, from []*lastWatch, own bool) (begin PipelineSet) {
	last := from
	if own {
		last = from[:1]
	}
	edited := w.edit != "" || slices.ContainsFunc(from, w.filtersDiffer)
	interrupted := !store.Clean() && w.state.Position == "" && from[0].Begun && !from[0].Paused // in the first state, by this kill
	goesOn := own && !w.state.Partial && !interrupted && w.options.HistoryLost == ""
	for n, pipeline := range w.options.Pipelines {
		has := func(l *lastWatch) bool { return l.Pipelines == nil || slices.Contains(l.Pipelines, pipeline) }
		pending := func(l *lastWatch) bool {
			snapshot, pending := l.Snapshots[pipeline]
			return pending && !snapshot.Unmarked // of one without marks, what is due is all that it lacks
		}
		former := edited || from[0].Snapshots[pipeline].Former
		switch snapshot := from[0].Snapshots[pipeline]; {
		case w.resumed && w.options.Snapshot == delta.SnapshotAlways:
			begin |= 1 << n
			former = former || snapshot.OnDemand
		case goesOn && snapshot.ID != "" && !snapshot.OnDemand && snapshot.Filters == w.options.filters(n):
			w.state.setSnapshot(pipeline, snapshot)
		case slices.ContainsFunc(from, pending), !slices.ContainsFunc(last, has):
			begin |= 1 << n
			former = former || w.resumed
		}
		if begin.Has(n) {
			w.state.setSnapshot(pipeline, PendingSnapshot{Former: former, OnDemand: from[0].Snapshots[pipeline].OnDemand})
		}
	}
	return begin
}

// restoreDue adds snapshots of those objects only that an edited configuration adds to what pipelines have. They have no marks,
// since what is not between them exists all the same.
func (w *watcher) restoreDue(due PipelineSet) {
	for n, pipeline := range w.options.Pipelines {
		if _, pending := w.state.Snapshots[pipeline]; due.Has(n) && !pending {
			w.state.setSnapshot(pipeline, PendingSnapshot{ID: newSnapshotID(), Filters: w.options.filters(n), Unmarked: true})
		}
	}
}

// firstStateInterrupted is why there is a gap before a watch that has no position.
const firstStateInterrupted = "the last run was killed while it sent the first state: what it sent and was deleted since is not known"

// filtersDiffer reports whether a pipeline had other filters in a watch of the last run.
func (w *watcher) filtersDiffer(last *lastWatch) bool {
	for n, pipeline := range last.Pipelines {
		now := slices.Index(w.options.Pipelines, pipeline)
		if now >= 0 && w.options.Filters != nil && (n >= len(last.Filters) || last.Filters[n] != w.options.Filters[now]) {
			return true
		}
	}
	return false
}

// killedAndEdited is why there is a gap though the history goes on.
const killedAndEdited = "the last run was killed, and the configuration was edited before or since: what it sent first after its last commit, and is not selected any more, is not known"

// severalPositions is why a watch that follows several others cannot go on from a position: each had its own.
const severalPositions = "the configuration was edited, and with it the watches of the resource"

// merge adds what is kept of another watch. If only one of the two has a position, what was made since that is a change. If none has, and one
// was complete, the resource was not there.
func (m *Meta) merge(other Meta) {
	m.mergeGone(&other)
	several := m.Position != other.Position
	switch {
	case several && m.Position == "":
		m.Complete = other.Complete
	case several && other.Position == "":
		other.Complete = m.Complete
	case m.Position == "":
		m.Complete = m.Complete || other.Complete
		other.Complete = m.Complete
	}
	m.Paused = (m.Paused || !m.Begun) && (other.Paused || !other.Begun)
	m.Complete, m.Begun = m.Complete && other.Complete, m.Begun || other.Begun
	m.Edited, m.Reading = max(m.Edited, other.Edited), max(m.Reading, other.Reading)
	m.Defined = m.Defined || other.Defined
	m.Unclean, m.Lost = m.Unclean || other.Unclean, m.Lost || other.Lost
	m.Refused, m.Uncertain = cmp.Or(m.Refused, other.Refused), cmp.Or(m.Uncertain, other.Uncertain)
	m.Repetition = cmp.Or(m.Repetition, other.Repetition)
	if m.Resume = lower(m.Resume, other.Resume); several {
		m.Reading = max(m.Reading, versionNumber(m.Position), versionNumber(other.Position))
		m.Refused, m.Position = severalPositions, lower(m.Position, other.Position)
	}
}

// mergeGone merges the progress of two watches with a resource that is gone. If one has found it again, the known objects of both are
// compared with it, not deleted; what the other read before does not count.
func (m *Meta) mergeGone(other *Meta) {
	found := func(w *Meta) bool { return w.Gone == 0 && (w.Position != "" || w.Begun) }
	gone, mine, others := max(m.Gone, other.Gone), found(m), found(other)
	m.Absent = (m.Absent || other.Absent) && !mine && !others
	if mine || others {
		m.Edited, gone = max(m.Edited, gone), 0
	}
	if mine && other.Position == "" && !other.Begun {
		other.Reading = 0
	}
	if others && m.Position == "" && !m.Begun {
		m.Reading = 0
	}
	m.Gone, other.Gone = gone, gone
}

// lower returns the lower of two positions, or the only one.
func lower(a, b string) string {
	if order, err := resourceversion.CompareResourceVersion(a, b); a == "" || err == nil && order > 0 {
		return b
	}
	return a
}

// mergeApart is merge for a watch that is apart: history goes on from the position. If it is not known what the other has sent, a gap
// record is due all the same.
func (m *Meta) mergeApart(other Meta) {
	m.mergeGone(&other)
	if other.Position != m.Position || other.Refused != "" {
		m.Apart = lower(m.Apart, cmp.Or(other.Position, m.Position))
	}
	if other.Position != "" && !other.Lost { // what it missed is not selected any more
		other.Refused = ""
	}
	if m.Position != "" && other.Refused != "" {
		m.Uncertain, other.Refused, other.Lost = cmp.Or(m.Uncertain, other.Refused), "", false
	}
	if m.Position != "" || other.Position != "" {
		other.Complete = m.Complete
	}
	other.Position, other.Resume = m.Position, m.Resume
	m.merge(other)
}

// sameSelection reports whether two watches select the same objects.
func (m *Meta) sameSelection(other *Meta) bool {
	return m.Namespace == other.Namespace && m.LabelSelector == other.LabelSelector && m.FieldSelector == other.FieldSelector &&
		slices.Equal(m.Namespaces.Include, other.Namespaces.Include) &&
		slices.Equal(m.Namespaces.Exclude, other.Namespaces.Exclude)
}

// unclean reports whether a killed run may have sent what it did not commit. What it sent of a snapshot is due again, and would be
// deleted without a DELETED for the pipeline.
func (w *watcher) unclean() bool {
	for _, snapshot := range w.state.Snapshots {
		if snapshot.Unclean {
			return true
		}
	}
	return w.state.Unclean || w.state.Lost || w.state.Uncertain != ""
}
