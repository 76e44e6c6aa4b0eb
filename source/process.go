package source

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// processor is the process function of a watch: it compares what arrives with the known set, and emits deltas.
type processor struct {
	*watcher
	// at is when the event arrived that is being processed.
	at time.Time
	// reading is set between begin and end.
	reading bool
	// exact is set while the state at the position is read: it holds no changes, only what pipelines lack.
	exact bool
	// lastRun is a resource version that the last run cannot have gone beyond.
	lastRun string
}

// process handles one event of a watch, or one object of a page. Its error means that ctx has ended.
func (p *processor) process(ctx context.Context, e event) error {
	p.at = time.Now()
	switch object := e.object; {
	case e.kind == watch.Bookmark && p.reading: // the only one inside a state is the one that closes it
		return p.end(ctx, e.resourceVersion)
	case e.kind == watch.Bookmark:
		p.handler.Update(func() { p.advance(e.resourceVersion) })
		return nil
	case !p.selects(object.Namespace()):
		p.handler.Update(func() { p.advance(object.ResourceVersion()) })
		return nil
	case e.kind == watch.Deleted:
		return p.deleted(ctx, object)
	default:
		return p.present(ctx, object, e.kind == watch.Modified)
	}
}

// begin starts a reading of the state: what follows, up to end, are the objects of the whole collection, and changes to
// them. exact is set if it is the state at the position. In a gap, what was sent before is committed first, so that what is
// inferred is inferred the same way after a crash; resourceVersion is that of the state.
func (p *processor) begin(ctx context.Context, resourceVersion string, exact bool) error {
	p.handler.Update(func() {
		p.reading, p.exact = true, exact
		p.known().beginRound()
	})
	if p.state.Refused == "" {
		return nil
	}
	if err := p.handler.Commit(ctx); err != nil {
		return err
	}
	return p.gap(ctx, resourceVersion, p.state.Refused)
}

// end completes a state.
func (p *processor) end(ctx context.Context, resourceVersion string) error {
	if !p.exact {
		if err := p.deleteUnseen(ctx, versionNumber(resourceVersion)); err != nil {
			return err
		}
	}
	p.at = time.Now()
	p.handler.Update(func() {
		unclean := p.state.Unclean && p.exact // what happened since the position is not seen yet
		p.reading, p.exact = false, false
		p.state.Complete, p.state.Partial, p.state.Refused = true, false, ""
		p.advance(resourceVersion)
		p.state.Unclean = unclean
	})
	p.health.completed()
	return nil
}

// abandon ends a reading whose state stays incomplete: what follows are changes since the position.
func (p *processor) abandon() {
	p.handler.Update(func() { p.reading, p.exact = false, false })
}

// gone handles a resource that does not exist any more, according to discovery: it took all of its objects along.
// endedCleanly is set if the server ended the watch itself just before: if every known object was deleted by then, nothing
// was missed.
func (p *processor) gone(ctx context.Context, endedCleanly bool) error {
	missed := p.state.Refused != "" || p.state.Position != "" && !(endedCleanly && p.known().len() == 0)
	if missed {
		p.logger.Warn("the resource is gone, and what happened since the position cannot be read: a gap; what was known of is deleted",
			"resourceVersion", p.state.Position)
		if err := p.gap(ctx, "", cmp.Or(p.state.Refused, historyGone)); err != nil {
			return err
		}
	}
	p.known().beginRound()
	if err := p.deleteUnseen(ctx, 0); err != nil {
		return err
	}
	p.absent, p.resumed, p.fill = true, false, false
	p.handler.Update(p.state.reset) // not before all are sent: else what is left would be forgotten
	return nil
}

// historyGone is why the history of a resource that is gone cannot be had.
const historyGone = "the resource is gone, and its history with it"

// gap sends a gap record for the stretch from the position to a resource version, which is empty if it is unknown.
func (p *processor) gap(ctx context.Context, to, reason string) error {
	p.metrics.gaps.Inc()
	p.at = time.Now()
	g := &delta.Gap{
		Watch: p.id, Resource: p.collection.resource, Namespace: p.collection.namespace,
		LabelSelector: p.collection.labelSelector, FieldSelector: p.collection.fieldSelector,
		From: p.state.Position, To: to, Reason: reason, Unclean: p.state.Unclean, Observed: p.at,
	}
	refused := func() { p.state.Refused, p.state.changed = reason, true }
	return p.health.handOver(ctx, p.at, func(ctx context.Context) error { return p.handler.Gap(ctx, g, refused) })
}

// advance moves the position. Inside a state the resource versions are in no order, and mean nothing.
func (p *processor) advance(resourceVersion string) {
	if !p.reading && resourceVersion != "" {
		p.state.Position = resourceVersion
		p.state.Unclean = p.state.Unclean && !p.caughtUp()
	}
	p.state.changed = true
	p.health.active(p.at, p.state.Position, p.known().len())
}

// caughtUp reports whether the position is past everything that the last run can have sent.
func (p *processor) caughtUp() bool {
	order, err := resourceversion.CompareResourceVersion(p.state.Position, p.lastRun)
	return p.lastRun == "" || err != nil || order >= 0
}

func (p *processor) known() *knownSet { return p.state.known }
