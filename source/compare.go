package source

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file compares what arrives with the known set, and emits the differences to the pipelines that they concern.

// present handles an object that exists. live is set if the server reported a change of it.
func (w *watcher) present(ctx context.Context, object *delta.Object, live bool) error {
	old, exists := w.known().find(keyOf(object))
	version := object.Version()
	d := &delta.Delta{Type: delta.Added, Object: object}
	switch {
	case exists && !old.version.SameObject(&version):
		// Deleted and created again unobserved: at the latest just before the version that exists now.
		asOf := versionNumber(object.ResourceVersion())
		if err := w.emitInferredDelete(ctx, keyOf(object), old, max(asOf, 1)-1); err != nil {
			return err
		}
		d.Inferred = true
	case exists && old.version.Equal(&version):
		w.unchanged(object, old)
		return nil
	case exists:
		return w.modified(ctx, object, old, live)
	case w.reading && !live:
		d.Snapshot = !w.state.Complete || w.exact
		d.Inferred = !d.Snapshot
		d.SnapshotID = w.readingID()
	}
	return w.emit(ctx, d, w.options.all(), views{filtered: w.options.all()}, w.recordVersion(object))
}

// modified handles a known object in another version. A snapshot that has not reached it gets that version: what the server
// lists of the object may be an earlier one.
func (w *watcher) modified(ctx context.Context, object *delta.Object, old knownObject, live bool) error {
	d := &delta.Delta{Type: delta.Modified, Object: object, Old: w.previous(keyOf(object), old), Inferred: w.reading && !live}
	if err := w.emit(ctx, d, w.options.all(), old.views, w.recordVersion(object)); err != nil {
		return err
	}
	return w.emitDue(ctx, object)
}

// unchanged handles an object in its known version.
func (w *watcher) unchanged(object *delta.Object, old knownObject) {
	record := func(v views) { w.record(object, v, nil) }
	if !old.retained && w.options.RetainFor&^old.filtered != 0 { // it was not needed until now
		record = w.recordVersion(object)
	}
	w.handler.Update(func() { record(old.views) })
}

// deleted handles a live DELETED, which is sent even if the object was never known.
func (w *watcher) deleted(ctx context.Context, object *delta.Object) error {
	old, exists := w.known().find(keyOf(object))
	version := object.Version()
	exists = exists && old.version.SameObject(&version)
	v := views{filtered: w.options.all()}
	if exists {
		v = old.views
	}
	return w.emit(ctx, &delta.Delta{Type: delta.Deleted, Object: object}, w.options.all(), v, func(views) {
		if exists {
			w.known().remove(keyOf(object))
		}
		w.advance(object.ResourceVersion())
	})
}

// deleteUnseen infers the deletion of what a complete state does not hold. asOf is the resource version of that state, 0
// where none was read.
func (w *watcher) deleteUnseen(ctx context.Context, asOf uint64) error {
	return w.eachUnseen(ctx, func(key objectKey, object knownObject) error {
		w.at = time.Now() // each may wait for room by itself
		return w.emitInferredDelete(ctx, key, object, asOf)
	})
}

// emitInferredDelete sends the DELETED of an object whose last state was missed to the pipelines that have the object.
func (w *watcher) emitInferredDelete(ctx context.Context, key objectKey, old knownObject, asOf uint64) error {
	d := w.inferredDelete(key, old, asOf)
	return w.emit(ctx, d, w.options.all()&^old.filtered|w.perhapsSent(old.views), old.views, func(views) { w.known().remove(key) })
}

// emitLeft sends the DELETED of an object that exists, and that an edited configuration does not select any more, to the
// pipelines that have the object and announce what leaves.
func (w *watcher) emitLeft(ctx context.Context, key objectKey, old knownObject, asOf uint64) error {
	d := w.inferredDelete(key, old, asOf)
	have := w.options.all()&^old.filtered | w.perhapsSent(old.views)
	return w.send(ctx, d, Recipients{Pipelines: have, Have: have, Left: true}, func(PipelineSet) { w.known().remove(key) })
}

func (w *watcher) inferredDelete(key objectKey, old knownObject, asOf uint64) *delta.Delta {
	object := w.previous(key, old)
	if object == nil {
		object = delta.NewIdentity(w.state.kind(), key.namespace.Value(), key.name, old.version.UID(), old.version.ResourceVersion())
	}
	return &delta.Delta{Type: delta.Deleted, Inferred: true, FinalStateUnknown: true, AsOf: asOf, Object: object}
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
func (w *watcher) emit(ctx context.Context, d *delta.Delta, to PipelineSet, v views, record func(views)) error {
	recipients := Recipients{Pipelines: to, Have: w.options.all() &^ v.filtered, RecordOnly: d.Snapshot && w.silent(to)}
	if !d.Snapshot {
		recipients.Have |= w.perhapsSent(v)
	}
	err := w.send(ctx, d, recipients, func(passed PipelineSet) {
		if d.Snapshot {
			w.state.countSnapshot(passed)
		}
		record(v.sent(to, passed))
	})
	if err == nil && !recipients.RecordOnly {
		w.metrics.seen[d.Type].Inc()
	}
	return err
}

func (w *watcher) send(ctx context.Context, d *delta.Delta, to Recipients, record func(passed PipelineSet)) error {
	d.Resource, d.Watch, d.Observed = w.collection.resource, w.id, w.at
	edited := w.order(d)
	if w.state.Unclean {
		d.SnapshotID = cmp.Or(d.SnapshotID, w.state.Repetition)
	}
	return w.health.handOver(ctx, w.at, func(ctx context.Context) error {
		if err := w.options.Previous.await(ctx); err != nil {
			return err
		}
		return w.handler.Delta(ctx, d, to, func(passed PipelineSet) {
			w.state.Edited = edited
			record(passed)
		})
	})
}

// recordVersion returns a function that records an object with what is to be retained of it.
func (w *watcher) recordVersion(object *delta.Object) func(views) {
	retain := w.retain(object)
	return func(v views) { w.record(object, v, retain(v)) }
}

// retain returns a function that returns what is to be retained of an object: nothing if the filters of all pipelines that
// need it keep the object back.
func (w *watcher) retain(object *delta.Object) func(views) []byte {
	var packed []byte
	if w.options.Retain != nil {
		packed = pack(w.options.Retain(w.collection.resource, object))
	}
	return func(v views) []byte {
		if w.options.RetainFor&^v.filtered == 0 {
			return nil
		}
		return packed
	}
}

func (w *watcher) record(object *delta.Object, v views, packed []byte) {
	w.known().put(object, v, packed)
	w.advance(object.ResourceVersion())
}

// previous returns the known version of an object, as it was retained; nil if it was not, or cannot be read.
func (w *watcher) previous(key objectKey, known knownObject) *delta.Object {
	if !known.retained {
		return nil
	}
	_, packed, stored := w.options.Previous.find(w.known(), key)
	if packed == nil && stored && w.store != nil {
		var err error
		if packed, err = w.store.Previous(w.id, key.namespace.Value(), key.name); err != nil {
			w.logger.Warn("cannot read the version before from the state directory; it counts as unknown",
				"namespace", key.namespace.Value(), "name", key.name, "err", err)
		}
	}
	object := unpack(packed)
	if object == nil {
		return nil
	}
	// An older version of this program leaves the retained versions as they are when their objects change.
	if version := object.Version(); !version.Equal(&known.version) {
		return nil
	}
	return object
}
