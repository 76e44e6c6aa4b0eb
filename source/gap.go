package source

import (
	"context"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// gap sends the gap record that is due, for the stretch from the position to a resource version, which is 0 if none was read. A reading that
// starts over sends another one only if it ends later: what it brings is not covered by the first.
func (w *watcher) gap(ctx context.Context, to uint64, reason delta.GapReason) error {
	w.at = time.Now()
	if reason == delta.GapRefused && len(w.state.Doubt) > 0 {
		reason = delta.GapLost
	}
	g := &delta.Gap{
		Watch: w.id, Resource: w.collection.resource, Namespace: w.collection.namespace,
		From: delta.FormatSequence(w.state.Sent), Reason: reason, Observed: w.at,
	}
	if to > 0 {
		g.To = delta.FormatSequence(w.sequence(to))
	}
	if w.lastGap != nil && w.lastGap.To == g.To {
		return nil
	}
	w.lastGap = g
	w.health.gap(g)
	if len(w.options.Pipelines) > 0 {
		w.logger.Warn("a gap record is sent: changes between two resource versions may be missing",
			"from", w.state.Position, "to", to, "reason", reason)
	}
	return w.health.handOver(ctx, w.at, func(ctx context.Context) error { // an error means that ctx has ended
		return w.handler.Gap(ctx, g, func() { w.state.changed = true })
	})
}
