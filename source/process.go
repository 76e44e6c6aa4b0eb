package source

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Handler takes what a source observes. Each watch calls it from one goroutine, in order; several watches call it
// at once.
type Handler interface {
	// Delta hands a delta to those takers of the audience whose filters it passes. It may block to hold its watch back.
	// then is called in the same moment as the hand-over, so that a commit sees both or neither, with the takers of the
	// audience whose filters the object passes, in the order of Takers, or nil if it passes all of them. It fails only
	// when ctx has ended; then nothing was handed over.
	Delta(ctx context.Context, d *delta.Delta, to Audience, then func(passed []string)) error
	// Passes returns the takers whose filters the object of a delta passes that nobody is told of.
	Passes(d *delta.Delta) []string
	// Keep returns what to keep of an object, so that its next change can carry the version before; nil if no taker
	// needs it.
	Keep(resource schema.GroupVersionResource, object *delta.Object) *delta.Object
	// Keeps says how Keep decides: what was kept under another answer is given to Keep once more. Empty if it always
	// returns nil.
	Keeps() string
	// Gap is Delta for a gap. It precedes the inferred deltas that make up the net difference.
	Gap(ctx context.Context, g *delta.Gap, then func()) error
	// Update runs a change of what a commit sees, in a moment when none looks.
	Update(change func())
	// Commit returns once everything handed over so far is secured, or ctx has ended, with an error.
	Commit(ctx context.Context) error
	// Takers are the names of those that deltas are handed to.
	Takers() []string
}

// Snapshot says what becomes of the objects that a watch finds when it begins.
type Snapshot string

// The modes of a snapshot. Without a state directory every start is a first one, so that initial and always are
// the same.
const (
	SnapshotInitial Snapshot = "initial" // each is delivered as ADDED, once to each taker
	SnapshotAlways  Snapshot = "always"  // at every start, after catching up
	SnapshotNever   Snapshot = "never"   // they are learned silently
)

// processor is the process function of a watch: it compares what arrives with the known set, and hands deltas on.
type processor struct {
	collection collection
	id         string // of the watch, as records name it
	kind       schema.GroupVersionKind
	namespaces delta.Namespaces
	snapshot   Snapshot
	handler    Handler
	health     *health
	metrics    *watchMetrics
	logger     *slog.Logger
	now        func() time.Time

	// at is when the event arrived that is being processed.
	at time.Time
	// state is what a commit sees; it changes only inside the handler's calls.
	state    *state
	selected map[string]bool // answers of namespaces, per namespace
	// reading is set between begin and end.
	reading bool
	// exact says that what is read is the state at the position: it holds no news, but for whom it is news itself.
	exact bool
	// owed are the takers that get each object of the state as a snapshot, known or not.
	owed []string
	// learning says that takers who do not know the objects are told nothing of them: only whose filters they pass is noted.
	learning bool
	// again says that the takers are owed a snapshot at this start, though they had one.
	again bool
	// lastRun is a resource version that the last run cannot have gone beyond.
	lastRun string
	// absent says that there was no such resource before this state, so that no object of it is an old one.
	absent bool
	gone   bool
}

// process handles one event. Its error means that ctx has ended.
func (p *processor) process(ctx context.Context, e event) error {
	p.at = p.now()
	switch object := e.object; {
	case e.marker != nil:
		return p.mark(ctx, e.marker)
	case !p.selects(object.Namespace()):
		p.handler.Update(func() { p.advance(object.ResourceVersion()) })
		return nil
	case e.kind == watch.Deleted:
		return p.deleted(ctx, object)
	default:
		return p.present(ctx, object, e.kind == watch.Modified)
	}
}

func (p *processor) mark(ctx context.Context, m *marker) error {
	switch m.kind {
	case begin:
		return p.begin(ctx, m)
	case end:
		if !p.exact {
			if err := p.deleteUnseen(ctx, versionNumber(m.resourceVersion)); err != nil {
				return err
			}
		}
		p.handler.Update(func() {
			unclean := p.state.unclean && p.exact // what happened since the position is not seen yet
			p.reading, p.exact, p.owed, p.again, p.absent = false, false, nil, false, false
			p.state.complete, p.state.partial, p.state.refused = true, false, ""
			p.state.served = p.handler.Takers()
			p.advance(m.resourceVersion)
			p.state.unclean = unclean
		})
		p.health.completed()
		return nil
	case bookmark:
		p.handler.Update(func() { p.advance(m.resourceVersion) })
		return nil
	case compared:
		p.lastRun = m.resourceVersion
		return nil
	case abandon:
		p.handler.Update(func() { p.reading, p.exact, p.owed = false, false, nil })
		return nil
	default: // gone: the resource took all of its objects along
		if m.refused != nil && !(m.endedCleanly && p.known().len() == 0) {
			p.logger.Warn("the resource is gone, and what happened since the position cannot be read: a gap; what was known of is deleted",
				"resourceVersion", m.refused.from)
			if err := p.gap(ctx, m.refused); err != nil {
				return err
			}
		}
		p.known().beginRound()
		if err := p.deleteUnseen(ctx, 0); err != nil {
			return err
		}
		p.gone = true // not before all are told: else what is left would be forgotten
		return nil
	}
}

// begin starts a reading of the state. What was handed over before is secured first, so that what is inferred is
// inferred the same way after a crash.
func (p *processor) begin(ctx context.Context, m *marker) error {
	p.handler.Update(func() {
		p.reading, p.exact = true, m.exact
		p.known().beginRound()
		p.owed, p.learning = nil, false
		if unserved := p.state.unserved(p.handler.Takers(), p.again); p.snapshot == SnapshotNever {
			p.learning = len(unserved) > 0
		} else {
			p.owed = unserved
		}
		if len(p.known().objects) == 0 { // nobody has been told anything that somebody else was not
			p.state.served = p.handler.Takers()
		}
	})
	if m.refused == nil {
		return nil
	}
	if err := p.handler.Commit(ctx); err != nil {
		return err
	}
	return p.gap(ctx, m.refused)
}

// present handles an object that exists. live says that the server called it a change.
func (p *processor) present(ctx context.Context, object *delta.Object, live bool) error {
	old, known := p.known().find(object)
	version := object.Version()
	kept := keep(p.handler.Keep(p.collection.resource, object))
	took := func(missed uint64) {
		p.known().put(object, missed, kept)
		p.advance(object.ResourceVersion())
	}
	d := &delta.Delta{Type: delta.Added, Object: object}
	to := Audience{Before: []string{}}
	switch {
	case known && !old.version.SameObject(&version):
		// Deleted and created again while nobody looked: at the latest just before what it is now.
		asOf := versionNumber(object.ResourceVersion())
		if err := p.lost(ctx, keyOf(object), old, max(asOf, 1)-1); err != nil {
			return err
		}
		d.Inferred = true
	case known && old.version.Equal(&version):
		return p.unchanged(ctx, object, old)
	case known:
		d.Type = delta.Modified
		d.Inferred = p.reading && !live
		d.Old = old.previous().object()
		to.Before = passing(old.missed, p.handler.Takers())
	case p.reading && !live:
		d.Snapshot = !p.state.complete || p.exact
		if p.absent && p.snapshot == SnapshotNever { // it did not exist when the silence began
			d.Snapshot = false
		}
		d.Inferred = !d.Snapshot
	}
	if d.Snapshot && p.snapshot == SnapshotNever {
		p.label(d)
		passed := p.handler.Passes(d)
		p.handler.Update(func() { took(misses(passed, p.handler.Takers())) })
		return nil
	}
	if d.Type == delta.Modified && len(p.owed) > 0 { // for those who do not know the object it is no change
		to.Only = p.others()
		err := p.emit(ctx, d, to, func(missed uint64) { to.Before = passing(missed, p.handler.Takers()) })
		if err != nil {
			return err
		}
		to.Only = p.owed
		return p.emit(ctx, snapshotOf(object), to, took)
	}
	return p.emit(ctx, d, to, took)
}

// others are the takers that are not owed a snapshot.
func (p *processor) others() []string {
	return slices.DeleteFunc(slices.Clone(p.handler.Takers()), func(name string) bool { return slices.Contains(p.owed, name) })
}

// unchanged handles an object that is known in this version already. It is news for the takers that are owed a
// snapshot, and for nobody else.
func (p *processor) unchanged(ctx context.Context, object *delta.Object, old known) error {
	var kept previous
	if p.exact && old.kept == nil { // the version before was not needed until now
		kept = keep(p.handler.Keep(p.collection.resource, object))
	}
	took := func(missed uint64) {
		p.known().saw(object)
		p.known().learn(object, missed, kept)
		p.advance(object.ResourceVersion())
	}
	if len(p.owed) > 0 {
		return p.emit(ctx, snapshotOf(object), Audience{Only: p.owed, Before: passing(old.missed, p.handler.Takers())}, took)
	}
	missed := old.missed
	if p.learning {
		d := snapshotOf(object)
		p.label(d)
		missed = misses(p.handler.Passes(d), p.handler.Takers())
	}
	p.handler.Update(func() { took(missed) })
	return nil
}

func snapshotOf(object *delta.Object) *delta.Delta {
	return &delta.Delta{Type: delta.Added, Object: object, Snapshot: true}
}

// deleted handles a live DELETED, which is news even where the object was never known.
func (p *processor) deleted(ctx context.Context, object *delta.Object) error {
	old, known := p.known().find(object)
	version := object.Version()
	known = known && old.version.SameObject(&version)
	to := Audience{Before: []string{}}
	if known {
		to.Before = passing(old.missed, p.handler.Takers())
	}
	return p.emit(ctx, &delta.Delta{Type: delta.Deleted, Object: object}, to, func(uint64) {
		if known {
			p.known().remove(keyOf(object))
		}
		p.advance(object.ResourceVersion())
	})
}

// deleteUnseen infers that what a complete state does not hold was deleted. asOf is the resource version of that state, 0
// where none was read.
func (p *processor) deleteUnseen(ctx context.Context, asOf uint64) error {
	for key, object := range p.known().unseen {
		p.at = p.now() // each is a hand-over of its own
		if err := p.lost(ctx, key, object, asOf); err != nil {
			return err
		}
	}
	return nil
}

// lost hands over the DELETED of an object whose last state was missed, to those who were told that it exists.
func (p *processor) lost(ctx context.Context, key types.NamespacedName, old known, asOf uint64) error {
	object := old.previous().object()
	if object == nil {
		object = delta.NewIdentity(p.kind, key.Namespace, key.Name, old.version.UID(), old.version.ResourceVersion())
	}
	d := &delta.Delta{Type: delta.Deleted, Inferred: true, FinalStateUnknown: true, AsOf: asOf, Object: object}
	passed := passing(old.missed, p.handler.Takers())
	return p.emit(ctx, d, Audience{Only: passed, Before: passed}, func(uint64) { p.known().remove(key) })
}

// versionNumber is a resource version as a number, or 0 if it is none.
func versionNumber(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (p *processor) gap(ctx context.Context, r *refusal) error {
	p.metrics.gaps.Inc()
	p.at = p.now()
	g := &delta.Gap{
		Watch: p.id, Resource: p.collection.resource, Namespace: p.collection.namespace,
		LabelSelector: p.collection.labelSelector, FieldSelector: p.collection.fieldSelector,
		From: r.from, To: r.to, Reason: r.reason, Unclean: p.state.unclean, Observed: p.at,
	}
	refused := func() { p.state.refused, p.state.changed = r.reason, true }
	return p.health.handOver(ctx, p.at, func(ctx context.Context) error { return p.handler.Gap(ctx, g, refused) })
}

// emit hands a delta over; then gets the takers whose filters the object does not pass now.
func (p *processor) emit(ctx context.Context, d *delta.Delta, to Audience, then func(missed uint64)) error {
	p.label(d)
	err := p.health.handOver(ctx, p.at, func(ctx context.Context) error {
		return p.handler.Delta(ctx, d, to, func(passed []string) {
			then(merge(p.handler.Takers(), to, passed))
		})
	})
	if err == nil {
		p.metrics.seen[d.Type].Inc()
	}
	return err
}

func (p *processor) label(d *delta.Delta) {
	d.Resource, d.Watch, d.Observed = p.collection.resource, p.id, p.at
}

// advance moves the position. Inside a state the resource versions are in no order, and mean nothing.
func (p *processor) advance(resourceVersion string) {
	if !p.reading && resourceVersion != "" {
		p.state.position = resourceVersion
		p.state.unclean = p.state.unclean && !p.caughtUp()
	}
	p.state.changed = true
	p.health.active(p.at, p.state.position, p.known().len())
}

// caughtUp reports whether the position is past everything that the last run can have told.
func (p *processor) caughtUp() bool {
	order, err := resourceversion.CompareResourceVersion(p.state.position, p.lastRun)
	return p.lastRun == "" || err != nil || order >= 0
}

func (p *processor) known() *knownSet { return p.state.known }

func (p *processor) selects(namespace string) bool {
	if p.namespaces.All() {
		return true
	}
	selected, ok := p.selected[namespace]
	if !ok {
		if len(p.selected) > p.known().len()+maxIdleNames { // most of them are gone
			clear(p.selected)
		}
		selected = p.namespaces.Match(namespace)
		p.selected[strings.Clone(namespace)] = selected
	}
	return selected
}
