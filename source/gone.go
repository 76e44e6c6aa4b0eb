package source

import (
	"context"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// gone handles a resource that no longer exists, according to discovery: all of its objects are deleted. What came and went since the watch
// ended cannot be known, also where it had shown every deletion: so there is a gap. The mark of an empty snapshot hides what pipelines may
// have that nothing is known of, as after a kill or an edit.
//
// The resource may come back with its objects in the versions that they had. So the deletions and the mark have the raised offset itself: that
// is above all that was sent, and below all that follows.
func (w *watcher) gone(ctx context.Context) error {
	w.mu.Lock()
	defer w.unlock()
	last, err := w.beginEnd(ctx, true)
	if err != nil {
		return err
	}
	w.logger.Warn("the resource or its namespace is gone, and the last changes cannot be read: sending a gap record, and a DELETED for each known object",
		"resourceVersion", w.state.Position)
	if err := w.gap(ctx, 0, delta.GapGone); err != nil {
		return err
	}
	sequence := max(w.options.Offset.Current(), last) // without a state directory no offset is raised
	if err := w.deleteUnseen(ctx, sequence); err != nil {
		return err
	}
	if err := w.endEmpty(ctx, sequence); err != nil {
		return err
	}
	w.lastGap = nil
	w.handler.Update(func() { // not before all are sent: else what is left would be forgotten
		w.endSnapshots()
		w.state.reset()
		w.state.Absent = true
	})
	return nil
}

// beginEnd raises the offset beyond all that was sent, for the DELETEDs of everything known. It returns the last sequence that was sent. What
// begins is committed: else a run after a kill would find the objects as they are known, and send nothing. If the resource is not gone, a run that
// has the watch again before its end reads what exists.
func (w *watcher) beginEnd(ctx context.Context, gone bool) (last uint64, err error) {
	last = w.sequence(w.state.Seen)
	w.handler.Update(func() {
		w.reading = false
		w.known().beginRound()
		w.raiseOffset(0)
		w.options.Offset.raise(last)
		if w.state.Gone, w.state.changed = gone, true; !gone {
			w.state.Absent = true
			w.state.readAnew(delta.GapEdited, w.snapshotted())
		}
	})
	return last, w.handler.Commit(ctx)
}

// endEmpty sends the pipelines the mark of an empty snapshot. w.mu is held, but not while it waits for room.
func (w *watcher) endEmpty(ctx context.Context, sequence uint64) error {
	w.mu.Unlock()
	defer w.mu.Lock()
	for n, pipeline := range w.options.Pipelines {
		if w.elsewhere.Has(n) {
			continue
		}
		err := w.untilRoom(ctx, n, func() bool {
			return w.offerMark(n, w.mark(sequence), func() { w.state.keepNaming(pipeline, sequence) })
		})
		if err != nil {
			return err
		}
	}
	return nil
}
