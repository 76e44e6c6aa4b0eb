package source

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file is the process function of a watch: it compares what arrives with the known set, and emits deltas.

// process handles one event of a watch, or one object of a page. Its error means that ctx has ended.
func (w *watcher) process(ctx context.Context, e event) error {
	w.mu.Lock()
	defer w.unlock()
	w.at = time.Now()
	switch object := e.object; {
	case e.kind == watch.Bookmark && w.reading: // the only one inside a state is the one that closes it
		return w.complete(ctx, e.resourceVersion)
	case e.kind == watch.Bookmark:
		w.handler.Update(func() { w.advance(e.resourceVersion) })
		return nil
	case !w.selects(object.Namespace()):
		w.handler.Update(func() { w.advance(object.ResourceVersion()) })
		return nil
	case e.kind == watch.Deleted:
		return w.deleted(ctx, object)
	default:
		return w.present(ctx, object, e.kind == watch.Modified)
	}
}

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
		w.state.Reading = max(w.state.Reading, versionNumber(resourceVersion))
		first := w.state.Position == ""
		if first && w.behindLoss || w.state.Refused != "" && (w.state.Uncertain != "" || w.ambiguous || w.state.Lost) {
			w.continueBehindLastRun()
		}
		if first {
			w.state.Begun, w.state.changed = true, true
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
	if !w.exact {
		if err := w.deleteUnseen(ctx, versionNumber(resourceVersion)); err != nil {
			return err
		}
	}
	w.at = time.Now()
	w.handler.Update(func() {
		unclean, lost := w.state.Unclean && w.exact, w.state.Lost && w.exact // what happened since the position is not seen yet
		w.reading, w.exact = false, false
		w.state.Complete, w.state.Begun, w.state.Partial, w.state.Refused = true, false, false, ""
		w.advance(resourceVersion)
		w.state.Unclean, w.state.Lost = unclean, lost
	})
	w.lastGap, w.edit = nil, ""
	w.health.completed()
	return nil
}

// abandon stops reading a state before its end; the events that follow are changes since the position.
func (w *watcher) abandon() {
	w.mu.Lock()
	defer w.unlock()
	w.handler.Update(func() { w.reading, w.exact = false, false })
}

// gone handles a resource that no longer exists, according to discovery: all of its objects are deleted.
// endedCleanly is set if the server ended the watch itself just before: if every known object was deleted by then, nothing
// was missed, but perhaps of what a killed run sent.
func (w *watcher) gone(ctx context.Context, endedCleanly bool) error {
	w.mu.Lock()
	defer w.unlock()
	missed := w.state.Refused != "" || w.marksDue(true) || w.state.Position != "" && !(endedCleanly && w.known().len() == 0 && !w.unclean())
	if missed {
		w.logger.Warn("the resource is gone, and what happened since the position cannot be read: a gap; what was known of is deleted",
			"resourceVersion", w.state.Position)
		if err := w.gap(ctx, "", cmp.Or(w.state.Refused, historyGone)); err != nil {
			return err
		}
	}
	w.known().beginRound()
	w.reading, w.exact, w.edit = false, false, "" // what an edit was adding is deleted behind that
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
	w.absent, w.resumed, w.fill = true, false, false
	w.lastRun, w.lastGap = "", nil
	w.handler.Update(func() { // not before all are sent: else what is left would be forgotten
		w.endSnapshots()
		w.state.reset()
		w.state.Complete = w.options.Snapshot == delta.SnapshotNever // what comes back is sent, also by the next run
		if behind > 1 {                                              // it may come back in these versions, if no CRD defined it
			w.state.Edited = max(w.state.Edited+1, behind)
		}
	})
	return nil
}

// marksDue reports whether a snapshot with marks has not ended; if moved is set, one of a pipeline that another watch fed before. If the
// resource is gone, they do not come, and the pipeline may have objects that nothing is known of.
func (w *watcher) marksDue(moved bool) bool {
	for _, snapshot := range w.state.Snapshots {
		if !snapshot.Unmarked && (snapshot.Former || !moved) {
			return true
		}
	}
	return false
}

// historyGone is why the history of a resource that is gone cannot be had.
const historyGone = "the resource is gone, and its history with it"

// gap sends a gap record for the stretch from the position to a resource version, which is empty if it is unknown. A reading that
// starts over sends another one only if it ends later: what it brings is not covered by the first.
func (w *watcher) gap(ctx context.Context, to, reason string) error {
	if w.lastGap != nil && w.lastGap.To == to {
		return nil
	}
	return w.sendGap(ctx, to, reason, func() { w.state.Refused = reason })
}

// gapForUncertain sends the gap record that is due though history goes on. It closes none.
func (w *watcher) gapForUncertain(ctx context.Context) error {
	w.mu.Lock()
	defer w.unlock()
	w.handler.Update(func() { w.continueBehindLastRun() })
	if err := w.handler.Commit(ctx); err != nil {
		return err
	}
	return w.sendGap(ctx, w.lastRun, w.state.Uncertain, func() {})
}

func (w *watcher) sendGap(ctx context.Context, to, reason string, record func()) error {
	w.at = time.Now()
	w.lastGap = &delta.Gap{
		Watch: w.id, Resource: w.collection.resource, Namespace: w.collection.namespace,
		LabelSelector: w.collection.labelSelector, FieldSelector: w.collection.fieldSelector,
		From: w.state.Position, To: to, Reason: reason, Unclean: w.unclean() || to == "" && w.marksDue(false), Observed: w.at,
	}
	w.health.gap(w.lastGap)
	w.logger.Warn("a gap record is sent: of the history between two resource versions, something may be missing",
		"from", w.lastGap.From, "to", to, "reason", reason)
	return w.health.handOver(ctx, w.at, func(ctx context.Context) error { // an error means that ctx has ended
		return w.handler.Gap(ctx, w.lastGap, func() {
			record()
			w.state.Uncertain, w.state.changed = "", true
		})
	})
}
