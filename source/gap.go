package source

import (
	"context"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

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

// refusedAmongEvents is why there is a gap at a position whose own history goes on.
const refusedAmongEvents = "the API server refuses the history from one version before the last event, and some of what had the version of that event is missing"

// gapBeforeDifference sends a gap record before the first difference that a comparison at the position finds.
func (w *watcher) gapBeforeDifference(ctx context.Context) error {
	if w.lastGap != nil {
		return nil
	}
	return w.sendGap(ctx, w.state.Position, refusedAmongEvents, func() {})
}

func (w *watcher) sendGap(ctx context.Context, to, reason string, record func()) error {
	w.at = time.Now()
	from := w.state.Position
	if w.comparing {
		from = w.state.Resume
	}
	w.lastGap = &delta.Gap{
		Watch: w.id, Resource: w.collection.resource, Namespace: w.collection.namespace,
		LabelSelector: w.collection.labelSelector, FieldSelector: w.collection.fieldSelector,
		From: from, To: to, Reason: reason, Unclean: w.unclean() || to == "" && w.marksDue(false), Observed: w.at,
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
