package source

import (
	"context"
	"strconv"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file compares what arrives with the known set, and emits the differences to the pipelines that they concern.

// present handles an object that exists. live is set if the server reported a change of it.
func (p *processor) present(ctx context.Context, object *delta.Object, live bool) error {
	old, exists := p.known().find(object)
	version := object.Version()
	d := &delta.Delta{Type: delta.Added, Object: object}
	switch {
	case exists && !old.version.SameObject(&version):
		// Deleted and created again unobserved: at the latest just before the version that exists now.
		asOf := versionNumber(object.ResourceVersion())
		if err := p.emitInferredDelete(ctx, keyOf(object), old, max(asOf, 1)-1); err != nil {
			return err
		}
		d.Inferred = true
	case exists && old.version.Equal(&version):
		return p.unchanged(ctx, object)
	case exists:
		return p.modified(ctx, object, old, live)
	case p.reading && !live:
		d.Snapshot = !p.state.Complete || p.exact
		d.Inferred = !d.Snapshot
	}
	return p.emit(ctx, d, p.options.all(), views{filtered: p.options.all()}, p.recordVersion(object))
}

// modified handles a known object in another version. While the state is read, the object is part of the snapshot of
// those pipelines that are due one, and no change.
func (p *processor) modified(ctx context.Context, object *delta.Object, old knownObject, live bool) error {
	d := &delta.Delta{Type: delta.Modified, Object: object, Old: old.previous().object(), Inferred: p.reading && !live}
	to := p.options.all()
	if p.reading && p.options.Snapshot != SnapshotNever {
		to &^= old.due
	}
	err := p.emit(ctx, d, to, old.views, p.recordVersion(object))
	if err != nil || !p.reading {
		return err
	}
	return p.unchanged(ctx, object)
}

// unchanged handles an object in its known version. Only the pipelines that are due a snapshot get it.
func (p *processor) unchanged(ctx context.Context, object *delta.Object) error {
	old, _ := p.known().find(object)
	record := func(v views) { p.record(object, v, nil) }
	if old.retained == nil { // it was not needed until now
		record = p.recordVersion(object)
	}
	if !p.reading || old.due == 0 {
		p.handler.Update(func() { record(old.views) })
		return nil
	}
	d := &delta.Delta{Type: delta.Added, Object: object, Snapshot: true}
	return p.emit(ctx, d, old.due, old.views, func(v views) {
		v.due = 0
		record(v)
	})
}

// deleted handles a live DELETED, which is sent even if the object was never known.
func (p *processor) deleted(ctx context.Context, object *delta.Object) error {
	old, exists := p.known().find(object)
	version := object.Version()
	exists = exists && old.version.SameObject(&version)
	v := views{filtered: p.options.all()}
	if exists {
		v = old.views
	}
	return p.emit(ctx, &delta.Delta{Type: delta.Deleted, Object: object}, p.options.all(), v, func(views) {
		if exists {
			p.known().remove(keyOf(object))
		}
		p.advance(object.ResourceVersion())
	})
}

// deleteUnseen infers the deletion of what a complete state does not hold. asOf is the resource version of that state, 0
// where none was read.
func (p *processor) deleteUnseen(ctx context.Context, asOf uint64) error {
	for key, object := range p.known().unseen {
		p.at = time.Now() // each may wait for room by itself
		if err := p.emitInferredDelete(ctx, key, object, asOf); err != nil {
			return err
		}
	}
	return nil
}

// emitInferredDelete sends the DELETED of an object whose last state was missed to the pipelines that have the object.
func (p *processor) emitInferredDelete(ctx context.Context, key objectKey, old knownObject, asOf uint64) error {
	object := old.previous().object()
	if object == nil {
		object = delta.NewIdentity(p.state.kind(), key.namespace.Value(), key.name, old.version.UID(), old.version.ResourceVersion())
	}
	d := &delta.Delta{Type: delta.Deleted, Inferred: true, FinalStateUnknown: true, AsOf: asOf, Object: object}
	return p.emit(ctx, d, p.options.all()&^old.filtered, old.views, func(views) { p.known().remove(key) })
}

// versionNumber is a resource version as a number, or 0 if it is none.
func versionNumber(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// emit sends a delta to the pipelines in to. v are the views of its object before, and record gets those after.
func (p *processor) emit(ctx context.Context, d *delta.Delta, to PipelineSet, v views, record func(views)) error {
	d.Resource, d.Watch, d.Observed = p.collection.resource, p.id, p.at
	recipients := Recipients{
		Pipelines: to, Have: p.options.all() &^ v.filtered,
		RecordOnly: d.Snapshot && p.options.Snapshot == SnapshotNever,
	}
	err := p.health.handOver(ctx, p.at, func(ctx context.Context) error {
		return p.handler.Delta(ctx, d, recipients, func(passed PipelineSet) { record(v.sent(to, passed)) })
	})
	if err == nil && !recipients.RecordOnly {
		p.metrics.seen[d.Type].Inc()
	}
	return err
}

// recordVersion returns a function that records an object with what is to be retained of it.
func (p *processor) recordVersion(object *delta.Object) func(views) {
	var retained previous
	if p.options.Retain != nil {
		retained = newPrevious(p.options.Retain(p.collection.resource, object))
	}
	return func(v views) { p.record(object, v, retained) }
}

func (p *processor) record(object *delta.Object, v views, retained previous) {
	p.known().put(object, v, retained)
	p.advance(object.ResourceVersion())
}
