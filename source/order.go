package source

import (
	"cmp"

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
	case !deleted && !w.reading && !d.Snapshot:
		least++
	}
	if sequence == 0 || sequence >= least {
		return edited
	}
	d.AsOf = least
	return max(edited, least)
}
