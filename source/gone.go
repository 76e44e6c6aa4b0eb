package source

import "context"

// gone handles a resource that no longer exists, according to discovery: all of its objects are deleted. What came and went since the watch
// ended cannot be known, also where it had shown every deletion: so there is a gap.
func (w *watcher) gone(ctx context.Context) error {
	w.mu.Lock()
	defer w.unlock()
	w.handler.Update(func() {
		w.reading = false
		w.known().beginRound()
		w.raiseOffset(0)
		w.options.Offset.raise(w.options.Offset.Current() + w.state.Seen) // a killed run may have sent more than is known
		w.state.Gone, w.state.changed = true, true
	})
	if err := w.handler.Commit(ctx); err != nil { // else a run after a kill would find the objects as they are known, and send nothing
		return err
	}
	w.logger.Warn("the resource is gone, and what happened since the position cannot be read: a gap; what was known of is deleted",
		"resourceVersion", w.state.Position)
	if err := w.gap(ctx, 0, gapGone); err != nil {
		return err
	}
	if err := w.deleteUnseen(ctx, w.state.Seen+1); err != nil {
		return err
	}
	w.fill, w.lastGap = false, nil
	w.handler.Update(func() { // not before all are sent: else what is left would be forgotten
		w.endSnapshots()
		w.state.reset()
		w.state.Seen++ // that of the deletions
		w.state.Absent = true
	})
	return nil
}
