package source

import (
	"cmp"
	"context"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// historyGone is why the history of a resource that is gone cannot be had.
const historyGone = "the resource is gone, and its history with it"

// gone handles a resource that no longer exists, according to discovery: all of its objects are deleted. What came and went since the watch
// ended cannot be known, also where it had shown every deletion: so there is a gap.
func (w *watcher) gone(ctx context.Context) error {
	w.mu.Lock()
	defer w.unlock()
	if w.state.Refused != "" || w.marksDue(true) || w.state.Position != "" || w.state.Begun || w.known().len() > 0 {
		w.logger.Warn("the resource is gone, and what happened since the position cannot be read: a gap; what was known of is deleted",
			"resourceVersion", w.state.Position)
		if err := w.gap(ctx, "", cmp.Or(w.state.Refused, historyGone)); err != nil {
			return err
		}
	}
	w.known().beginRound()
	w.reading, w.exact, w.comparing, w.edit = false, false, false, "" // what an edit was adding is deleted behind that
	behind := max(w.state.Gone, versionNumber(w.state.Position)+1, w.state.Reading+1)
	for _, object := range w.known().unseen {
		behind = max(behind, versionNumber(object.version.ResourceVersion())+1)
	}
	w.handler.Update(func() {
		if w.unclean() && behind > 1 { // the killed run may have sent later versions than are known
			w.state.Edited = max(w.state.Edited, behind) + maxRaised
		}
		w.state.Gone, w.state.changed = behind, true
	})
	if err := w.handler.Commit(ctx); err != nil { // else a run after a kill would find the objects as they are known, and send nothing
		return err
	}
	if err := w.deleteUnseen(ctx, 0); err != nil {
		return err
	}
	w.resumed, w.fill = false, false
	w.lastRun, w.lastGap = "", nil
	w.handler.Update(func() { // not before all are sent: else what is left would be forgotten
		w.endSnapshots()
		w.state.reset()
		w.state.Absent = true
		w.state.Complete = w.options.Snapshot == delta.SnapshotNever // what comes back is sent, also by the next run
		if behind > 1 {                                              // it may come back in these versions, if no CRD defined it
			w.state.Edited, w.state.Reading = max(w.state.Edited+1, behind), behind-1
		}
	})
	return nil
}
