package source

import (
	"context"
	"time"
)

// begin starts reading the state: up to end, the events are the objects of the collection and changes to them. exact is set if
// it is the state at the position; resourceVersion is that of the state. Three cases are committed first. In a gap, so that a
// restart infers the same deltas. And a first state, as begun: after a crash its objects may have been sent without a commit that
// names them, so the next run reports a gap. And the sequence that an edit begins with, which the next run must not go below.
func (w *watcher) begin(ctx context.Context, resourceVersion string, exact bool) error {
	w.mu.Lock()
	w.handler.Update(func() {
		w.reading, w.exact = true, exact
		w.known().beginRound()
		w.beginEdit(resourceVersion)
		w.state.Reading, w.state.Absent = max(w.state.Reading, versionNumber(resourceVersion)), false
		first := w.state.Position == ""
		if first && w.behindLoss || w.state.Refused != "" && (w.state.Uncertain != "" || w.ambiguous || w.state.Lost) {
			w.continueBehindLastRun()
		}
		if first {
			w.state.Begun, w.state.Paused, w.state.changed = true, false, true
		}
	})
	var err error
	if w.state.Refused != "" || w.state.Begun || w.edit != "" {
		err = w.handler.Commit(ctx)
	}
	switch {
	case err != nil:
	case w.state.Refused != "":
		err = w.gap(ctx, resourceVersion, w.state.Refused)
	}
	w.unlock()
	if err == nil && w.state.Position == "" {
		err = w.beginFirstSnapshots(ctx)
	}
	return err
}

// end completes a state that was read in pages.
func (w *watcher) end(ctx context.Context, resourceVersion string) error {
	w.mu.Lock()
	defer w.unlock()
	return w.complete(ctx, resourceVersion)
}

func (w *watcher) complete(ctx context.Context, resourceVersion string) error {
	if !w.exact || w.comparing {
		if err := w.deleteUnseen(ctx, versionNumber(resourceVersion)); err != nil {
			return err
		}
	}
	w.at = time.Now()
	w.handler.Update(func() {
		unclean, lost := w.state.Unclean && w.exact, w.state.Lost && w.exact // what happened since the position is not seen yet
		resume := resourceVersion
		if w.exact && !w.comparing { // more may follow that has the version of the last event
			resume = w.state.Resume
		}
		w.reading, w.exact, w.comparing = false, false, false
		w.state.Complete, w.state.Begun, w.state.Paused, w.state.Partial, w.state.Apart, w.state.Refused = true, false, false, false, "", ""
		w.move(resourceVersion, resume)
		w.state.Unclean, w.state.Lost = unclean, lost
	})
	w.lastGap, w.edit = nil, ""
	w.health.completed()
	return nil
}

// deleteUnseen infers the deletion of what a complete state does not hold. asOf is the resource version of that state, 0
// where none was read.
func (w *watcher) deleteUnseen(ctx context.Context, asOf uint64) error {
	return w.eachUnseen(ctx, func(key objectKey, object knownObject) error {
		w.at = time.Now() // each may wait for room by itself
		return w.emitInferredDelete(ctx, key, object, asOf)
	})
}

// abandon stops reading a state before its end; the events that follow are changes since the position.
func (w *watcher) abandon() {
	w.mu.Lock()
	defer w.unlock()
	w.handler.Update(func() { w.reading, w.exact = false, false })
}
