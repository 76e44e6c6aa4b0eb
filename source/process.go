package source

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file is the process function of a watch: it compares what arrives with the known set, and sends the differences to the
// pipelines that they concern.

// process handles one event of a watch, or one object of a page. Its error means that ctx has ended.
func (w *watcher) process(ctx context.Context, e event) error {
	w.mu.Lock()
	defer w.unlock()
	w.at = time.Now()
	switch object := e.object; {
	case e.kind == watch.Bookmark:
		w.handler.Update(func() { w.passed(object.ResourceVersion()) })
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

// present handles an object that exists. live is set if the server reported a change of it.
func (w *watcher) present(ctx context.Context, object *delta.Object, live bool) error {
	old, exists := w.known().find(keyOf(object))
	version := object.Version()
	d := &delta.Delta{Type: delta.Added, Object: object}
	switch {
	case exists && !old.version.SameObject(&version):
		// Deleted and created again unobserved: at the latest just before the version that exists now.
		asOf := versionNumber(object.ResourceVersion())
		if err := w.emitInferredDelete(ctx, keyOf(object), old, w.sequence(max(asOf, 1)-1)); err != nil {
			return err
		}
		d.Inferred = true
	case exists && old.version.Equal(&version):
		w.unchanged(object, old)
		return nil
	case exists:
		return w.modified(ctx, object, old, live)
	case w.reading && !live:
		d.Snapshot = !w.came() && (w.state.Position == "" || w.state.Gap == delta.GapEdited && w.precedes(object))
		d.Inferred = !d.Snapshot
	}
	return w.emit(ctx, d, w.options.all(), views{filtered: w.options.all()}, w.recordVersion(object))
}

// came reports whether the resource has come while it was waited for without snapshots, or the last run began to end the watch: what exists is
// new then, as far as it is not known.
func (w *watcher) came() bool { return w.options.Snapshot == delta.SnapshotNever && w.state.Absent }

// precedes reports whether an object is known to be not after the position: an edit adds it, unless it is known.
func (w *watcher) precedes(object *delta.Object) bool {
	n := versionNumber(object.ResourceVersion())
	return n > 0 && n <= versionNumber(w.state.Position)
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

// emitDue sends an object that has just changed to the pipelines whose snapshot has not reached it. Not while they are in doubt: the change may
// be repeated, and they may have later ones. Then the list is read once more.
func (w *watcher) emitDue(ctx context.Context, object *delta.Object) error {
	for n := range w.options.Pipelines {
		old, _ := w.known().find(keyOf(object))
		if !old.due.Has(n) || w.state.doubtful().Has(n) {
			continue
		}
		err := w.emit(ctx, snapshotOf(object), 1<<n, old.views, func(v views) { w.record(object, v.snapshotted(n), nil) })
		if err != nil {
			return err
		}
	}
	return nil
}

// unchanged handles an object in its known version.
func (w *watcher) unchanged(object *delta.Object, old knownObject) {
	record := func(v views) { w.record(object, v, nil) }
	if !old.retained && w.options.RetainFor&^old.filtered != 0 { // it was not needed until now
		record = w.recordVersion(object)
	}
	w.handler.Update(func() { record(old.views) })
}

// deleted handles a live DELETED. One of an object that is not known is repeated, and nothing.
func (w *watcher) deleted(ctx context.Context, object *delta.Object) error {
	old, exists := w.known().find(keyOf(object))
	version := object.Version()
	if !exists || !old.version.SameObject(&version) {
		w.handler.Update(func() { w.advance(object.ResourceVersion()) })
		return nil
	}
	return w.emitDeleted(ctx, &delta.Delta{Type: delta.Deleted, Object: object}, w.options.all()&^old.had, old.views, func() {
		w.known().remove(keyOf(object))
		w.advance(object.ResourceVersion())
	})
}

// emitDeleted sends a DELETED to the pipelines in to. Then those that had the object, and were sent no DELETED of it, get one that only names the
// object: their filters may hide what else is in it. forget removes the object from the known set in the same moment.
func (w *watcher) emitDeleted(ctx context.Context, d *delta.Delta, to PipelineSet, v views, forget func()) error {
	var had PipelineSet
	err := w.emit(ctx, d, to, v, func(v views) {
		if had = v.had; had == 0 {
			forget()
			return
		}
		v.filtered = w.options.all()
		w.known().review(keyOf(d.Object), v, nil)
	})
	if err != nil || had == 0 {
		return err
	}
	if to == 0 { // else emit has counted it
		w.seen[d.Type].Inc()
	}
	named := *d
	named.Object, named.FinalStateUnknown = d.Object.Identity(), true
	return w.send(ctx, &named, Recipients{Pipelines: had}, func(PipelineSet) { forget() })
}

// emitInferredDelete sends the DELETED of an object whose last state was missed to the pipelines that have the object, or had it.
func (w *watcher) emitInferredDelete(ctx context.Context, key objectKey, old knownObject, sequence uint64) error {
	d := w.inferredDelete(key, old, sequence)
	return w.emitDeleted(ctx, d, w.options.all()&^old.filtered, old.views, func() { w.known().remove(key) })
}

// emitLeft sends the DELETED of an object that an edited configuration does not select any more, or perhaps was deleted, to the pipelines that
// have the object and announce what leaves.
func (w *watcher) emitLeft(ctx context.Context, key objectKey, old knownObject, sequence uint64) error {
	d := w.inferredDelete(key, old, sequence)
	have := w.options.Announcing &^ old.filtered &^ w.elsewhere
	return w.send(ctx, d, Recipients{Pipelines: have, Have: have}, func(PipelineSet) { w.known().remove(key) })
}

func (w *watcher) inferredDelete(key objectKey, old knownObject, sequence uint64) *delta.Delta {
	object := w.previous(key, old)
	if object == nil {
		object = delta.NewIdentity(w.state.kind(), key.namespace.Value(), key.name, old.version.UID(), old.version.ResourceVersion())
	}
	return &delta.Delta{Type: delta.Deleted, Inferred: true, FinalStateUnknown: true, Sequence: sequence, Object: object}
}

// emit sends a delta to the pipelines in to. v are the views of its object before, and record gets those after.
func (w *watcher) emit(ctx context.Context, d *delta.Delta, to PipelineSet, v views, record func(views)) error {
	recipients := Recipients{Pipelines: to, Have: w.options.all() &^ v.filtered}
	if d.Snapshot {
		recipients.RecordOnly = w.silent(to)
	}
	err := w.send(ctx, d, recipients, func(passed PipelineSet) {
		if d.Snapshot {
			w.state.countSnapshot(passed)
		}
		record(v.sent(to, passed, w.options.Announcing))
	})
	if err == nil && recipients.RecordOnly != to {
		w.seen[d.Type].Inc()
	}
	return err
}

func (w *watcher) send(ctx context.Context, d *delta.Delta, to Recipients, record func(passed PipelineSet)) error {
	w.stamp(d)
	if to.Snapshots = w.state.namedIn(w.options.Pipelines, d); to.Snapshots != nil {
		d.SnapshotSequence = to.Snapshots[0] // pipelines that name the same share it
	}
	return w.health.handOver(ctx, w.at, func(ctx context.Context) error {
		if err := w.awaitPrevious(ctx); err != nil {
			return err
		}
		return w.handler.Delta(ctx, d, to, record)
	})
}

// stamp sets what a delta has from its watch, the sequence unless it has one.
func (w *watcher) stamp(d *delta.Delta) {
	d.Resource, d.Watch, d.Observed, d.Restored = w.collection.resource, w.id, w.at, w.state.Restored
	if d.Sequence == 0 {
		d.Sequence = w.sequence(versionNumber(d.Object.ResourceVersion()))
	}
}

// recordVersion returns a function that records an object with what is to be retained of it.
func (w *watcher) recordVersion(object *delta.Object) func(views) {
	retain := w.retain(object)
	return func(v views) { w.record(object, v, retain(v)) }
}

func (w *watcher) record(object *delta.Object, v views, packed []byte) {
	w.known().put(object, v, packed)
	w.advance(object.ResourceVersion())
}

// advance moves the position to an event. Others may follow that have the same resource version: etcd deletes the Events of a lease in one
// transaction. So a watch goes on one version before it, or where versions are no numbers, at the last one that was followed by another.
// 0 would be any version.
func (w *watcher) advance(resourceVersion string) {
	resume := w.state.Resume
	switch n := versionNumber(resourceVersion); {
	case w.reading: // the position does not move
	case n > 0:
		resume = strconv.FormatUint(max(n-1, 1), 10)
	case resourceVersion != w.state.Position:
		resume = w.state.Position
	}
	w.move(resourceVersion, resume)
}

// passed moves the position to a bookmark. No event follows that has its resource version, unless the last event has it, too: a watch cache
// may send a bookmark between several. Of versions that are no numbers that is not known.
func (w *watcher) passed(resourceVersion string) {
	switch {
	case resourceVersion == w.state.Position:
		w.move(resourceVersion, w.state.Resume)
	case versionNumber(resourceVersion) == 0:
		w.advance(resourceVersion)
	default:
		w.move(resourceVersion, resourceVersion)
	}
}

// move moves the position. Inside a state the resource versions are in no order, and mean nothing.
func (w *watcher) move(resourceVersion, resume string) {
	if !w.reading && resourceVersion != "" {
		w.state.Position, w.state.Resume = resourceVersion, cmp.Or(resume, resourceVersion)
		w.state.Sent, w.state.Seen = w.sequence(versionNumber(resourceVersion)), max(w.state.Seen, versionNumber(resourceVersion))
		w.state.endDoubts()
	}
	w.state.changed = true
	w.health.active(w.at, w.state.Position, w.known().len())
}
