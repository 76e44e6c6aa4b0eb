package source

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/kubeferry/kubeferry/delta"
)

// Handler takes what a source observes. Each watch calls it from one goroutine, in order; several watches call it
// at once. It may block to hold its watch back. It fails only when ctx has ended, and the watch with it.
type Handler interface {
	Delta(ctx context.Context, d *delta.Delta) error
	// Gap precedes the inferred deltas that make up the net difference.
	Gap(ctx context.Context, g *delta.Gap) error
}

// Snapshot says what becomes of the objects that a watch finds when it begins.
type Snapshot string

// The modes of a snapshot. Without a state directory every start is a first one, so that initial and always are
// the same.
const (
	SnapshotInitial Snapshot = "initial" // each is delivered as ADDED
	SnapshotAlways  Snapshot = "always"
	SnapshotNever   Snapshot = "never" // they are learned silently
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
	now        func() time.Time

	known    *knownSet
	selected map[string]bool // answers of namespaces, per namespace
	position string
	// reading is set between begin and end.
	reading bool
	// complete is set once a state was read to its end: from then on an object that a reading brings is news.
	complete bool
	gone     bool
}

// process implements the signature of client-go's PopProcessFunc. Its error means that ctx has ended.
func (p *processor) process(ctx context.Context, obj any) error {
	deltas, _ := obj.(cache.Deltas)
	for _, d := range deltas {
		if err := p.one(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

func (p *processor) one(ctx context.Context, d cache.Delta) error {
	switch object := d.Object.(type) {
	case *note:
		return p.note(ctx, object)
	case cache.BookmarkInfo:
		p.advance(object.ResourceVersion)
		return nil
	case *delta.Object:
		if !p.selects(object.Namespace()) {
			p.advance(object.ResourceVersion())
			return nil
		}
		var err error
		if d.Type == cache.Deleted {
			err = p.deleted(ctx, object)
		} else {
			err = p.present(ctx, object, d.Type == cache.Updated)
		}
		if err == nil {
			p.advance(object.ResourceVersion())
		}
		return err
	default:
		return nil // ReplacedAll: the answer that our own List gave
	}
}

func (p *processor) note(ctx context.Context, n *note) error {
	switch n.kind {
	case begin:
		p.reading = true
		p.known.beginRound()
		if n.refused != nil {
			return p.gap(ctx, n.refused)
		}
		return nil
	case end:
		if err := p.deleteUnseen(ctx); err != nil {
			return err
		}
		p.reading, p.complete = false, true
		p.health.completed()
		p.advance(n.resourceVersion)
		return nil
	default: // gone: the resource took all of its objects along
		p.known.beginRound()
		p.gone = true
		return p.deleteUnseen(ctx)
	}
}

// present handles an object that exists. live says that the server called it a change.
func (p *processor) present(ctx context.Context, object *delta.Object, live bool) error {
	d := &delta.Delta{Type: delta.Added, Object: object}
	old, known := p.known.find(object)
	switch {
	case known && old.uid != object.UID():
		// Deleted and created again while nobody looked.
		if err := p.emit(ctx, p.lost(object.Namespace(), object.Name(), old)); err != nil {
			return err
		}
		d.Inferred = true
	case known && old.resourceVersion == object.ResourceVersion():
		p.known.put(object) // seen in this round
		return nil
	case known:
		d.Type = delta.Modified
		d.Inferred = p.reading && !live
	case p.reading && !live:
		d.Snapshot, d.Inferred = !p.complete, p.complete
	}
	if !d.Snapshot || p.snapshot != SnapshotNever {
		if err := p.emit(ctx, d); err != nil {
			return err
		}
	}
	p.known.put(object)
	return nil
}

// deleted handles a live DELETED, which is news even where the object was never known.
func (p *processor) deleted(ctx context.Context, object *delta.Object) error {
	if err := p.emit(ctx, &delta.Delta{Type: delta.Deleted, Object: object}); err != nil {
		return err
	}
	if old, known := p.known.find(object); known && old.uid == object.UID() {
		p.known.remove(object)
	}
	return nil
}

// deleteUnseen infers that what a complete state does not hold was deleted.
func (p *processor) deleteUnseen(ctx context.Context) error {
	for key, object := range p.known.takeUnseen {
		if err := p.emit(ctx, p.lost(key.Namespace, key.Name, object)); err != nil {
			return err
		}
	}
	return nil
}

// lost makes the delta of an object of which only the identity is known.
func (p *processor) lost(namespace, name string, old known) *delta.Delta {
	return &delta.Delta{
		Type: delta.Deleted, Inferred: true, FinalStateUnknown: true,
		Object: delta.NewIdentity(p.kind, namespace, name, old.uid, old.resourceVersion),
	}
}

func (p *processor) gap(ctx context.Context, r *refusal) error {
	p.metrics.gaps.Inc()
	g := &delta.Gap{
		Watch: p.id, Resource: p.collection.resource, Namespace: p.collection.namespace,
		LabelSelector: p.collection.labelSelector, FieldSelector: p.collection.fieldSelector,
		From: r.from, To: r.to, Reason: r.reason, Observed: p.now(),
	}
	return p.health.handOver(ctx, func(ctx context.Context) error { return p.handler.Gap(ctx, g) })
}

func (p *processor) emit(ctx context.Context, d *delta.Delta) error {
	d.Resource, d.Watch, d.Observed = p.collection.resource, p.id, p.now()
	p.metrics.seen[d.Type].Inc()
	return p.health.handOver(ctx, func(ctx context.Context) error { return p.handler.Delta(ctx, d) })
}

// advance moves the position. Inside a state the resource versions are in no order, and mean nothing.
func (p *processor) advance(resourceVersion string) {
	if !p.reading && resourceVersion != "" {
		p.position = resourceVersion
	}
	p.health.active(p.position, p.known.len())
}

func (p *processor) selects(namespace string) bool {
	if p.namespaces.All() {
		return true
	}
	selected, ok := p.selected[namespace]
	if !ok {
		selected = p.namespaces.Match(namespace)
		p.selected[namespace] = selected
	}
	return selected
}
