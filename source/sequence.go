package source

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file keeps the sequences of an object's deltas rising where an edited configuration takes objects out and adds them again,
// though neither they nor the position have changed, and where a killed run has sent changes beyond the position. (Of two deltas
// with the same sequence, a DELETED is the later.)

// beginEdit sets the sequence of what the reading of a state after an edit adds: behind what it takes out, which is as of the state.
// It is called inside the handler's calls.
func (w *watcher) beginEdit(resourceVersion string) {
	if w.edit == "" {
		return
	}
	sent := versionNumber(resourceVersion)
	if w.state.Unclean {
		sent = max(sent, versionNumber(w.lastRun))
	}
	w.state.Edited, w.state.changed = max(w.state.Edited, sent)+1, true
}

// continueBehindLastRun makes what follows come behind all that a killed run can have sent, and behind the last state that was read: edited
// filters may keep back now what they let pass then, or the reverse. It is called inside the handler's calls.
func (w *watcher) continueBehindLastRun() {
	w.state.Edited, w.state.changed = max(w.state.Edited, versionNumber(w.lastRun), w.state.Reading)+1, true
}

// maxRaised is more changes than a run sends with raised sequences beyond its last commit, or beyond the copy of a replica that takes
// over.
const maxRaised = 1 << 20

// raiseEdited makes sequences begin behind all that a killed run can have sent. What it committed last includes the sequence that an edit
// began with; each change behind that, at most, took another one, until the resource versions were beyond them. A watch whose resource does
// not exist, or whose first state was not read on, has sent nothing.
func (m *Meta) raiseEdited() {
	absent := m.Position == "" && (!m.Begun || m.Paused) && m.Gone == 0
	if !absent && m.Edited > 0 && m.Edited >= versionNumber(m.Position) {
		m.Edited += maxRaised
	}
}

// highest returns the highest sequence that the watch has sent, as far as that was committed.
func (l *lastWatch) highest(store Store) (uint64, error) {
	if l.sent > 0 {
		return l.sent, nil
	}
	l.sent = max(l.Edited, l.Gone, l.Reading, versionNumber(l.Position))
	err := store.Known(l.id, func(object delta.Known) { // in the midst of a state, versions are beyond the position
		l.sent = max(l.sent, versionNumber(object.Version.ResourceVersion()))
	})
	return l.sent, err
}

// highestPossible is highest, or what a killed run can have sent beyond its last commit.
func (l *lastWatch) highestPossible(store Store) (uint64, error) {
	highest, err := l.highest(store)
	if l.Unclean || !store.Clean() {
		highest += maxRaised
	}
	return highest, err
}

// continueBehindFilters makes the watch begin behind what those of the last run sent of its resource to its pipelines under other filters
// or selections: what left these may pass now in the same version.
func (w *watcher) continueBehindFilters(store Store, lasts []*lastWatch) error {
	sent := uint64(0)
	for _, last := range lasts {
		inherited := slices.Contains(w.from, last.id)
		if last.Resource != w.state.Resource || !w.filtersDiffer(last) && (inherited || !last.movedTo(w)) {
			continue
		}
		read := last.highestPossible
		if inherited { // continueBehindLastRun follows
			read = last.highest
		}
		highest, err := read(store)
		if err != nil {
			return err
		}
		sent = max(sent, highest)
	}
	if sent > 0 {
		w.state.Edited = max(w.state.Edited, sent) + 1
	}
	return nil
}

// continueSequences makes each watch begin behind what others sent of its resource, where its pipelines may have that.
func continueSequences(store Store, watches []*watcher, lasts []*lastWatch) error {
	edited, former := map[string]uint64{}, map[string]uint64{}
	pipelines, had := map[string][]string{}, map[string][]string{} // of a resource: in the last run, and ever
	for _, last := range lasts {
		edited[last.Resource] = max(edited[last.Resource], last.Edited)
		for resource, highest := range last.Former {
			former[resource] = max(former[resource], highest)
		}
		pipelines[last.Resource] = append(pipelines[last.Resource], last.Pipelines...)
		had[last.Resource] = append(append(had[last.Resource], last.Pipelines...), last.FormerPipelines...)
	}
	for _, w := range watches {
		resource := w.state.Resource
		_, stayed := pipelines[resource]
		least := edited[resource] // pipelines that took the resource from another watch may have what its edits sent
		if slices.ContainsFunc(w.options.Pipelines, func(pipeline string) bool {
			return !stayed || slices.Contains(had[resource], pipeline) && !slices.Contains(pipelines[resource], pipeline)
		}) {
			sent := former[resource] // it was there before, and so was what it sent
			for _, last := range lasts {
				if last.Resource == resource {
					highest, err := last.highestPossible(store)
					if err != nil {
						return err
					}
					sent = max(sent, highest)
				}
			}
			if sent > 0 {
				least = sent + 1
			}
		}
		gone := slices.DeleteFunc(slices.Clone(had[resource]), func(pipeline string) bool { return slices.Contains(w.options.Pipelines, pipeline) })
		slices.Sort(gone)
		w.state.FormerPipelines = slices.Compact(gone)
		w.state.Edited, w.state.Former, w.state.changed = max(w.state.Edited, least), former, true
	}
	for _, last := range lasts { // of those that are former now
		if len(last.watches) == 0 {
			highest, err := last.highestPossible(store)
			if err != nil {
				return err
			}
			former[last.Resource] = max(former[last.Resource], highest)
		}
	}
	for _, w := range watches {
		delete(former, w.state.Resource)
	}
	maps.DeleteFunc(former, func(_ string, highest uint64) bool { return highest == 0 })
	return nil
}

// order gives a delta that would come before what an edit has sent a sequence behind that. It returns what the next one has to come
// after.
func (w *watcher) order(d *delta.Delta) (edited uint64) {
	sequence := cmp.Or(d.AsOf, versionNumber(d.Object.ResourceVersion()))
	edited = w.state.Edited
	least := edited
	if least == 0 {
		return 0
	}
	switch deleted := d.Type == delta.Deleted; {
	case deleted && w.reading && w.edit != "":
		least-- // what the same edit adds comes behind it
	case !deleted && !(w.reading && w.edit != "") && !d.Snapshot:
		least++
	}
	if sequence == 0 || sequence >= least {
		return edited
	}
	d.AsOf = least
	return max(edited, least)
}

// versionNumber is a resource version as a number, or 0 if it is none.
func versionNumber(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
