package source

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file sends what exists to one pipeline, beside the changes of a watch that has its state: to a pipeline that is new, and
// at every start to all if that is configured. The objects are listed page by page, and each is sent if it is in its known
// version. In another version there is a change that the watch has not brought yet, or has brought since the list was made:
// with that change the process function sends the object (emitDue). So the records of each object keep their order,
// and the watch waits for no snapshot. After a kill the list is read again until the watch has brought what is in it. What is left
// to send is kept with the objects (views.due), in the state directory too.

// PendingSnapshot is what is kept of a snapshot that is not complete.
type PendingSnapshot struct {
	// ID is in its marks; empty until it has begun.
	ID string `json:"id,omitempty"`
	// Count is how many objects were sent.
	Count uint64 `json:"count,omitempty"`
	// Filters are the pipeline's, as [Options.Filters] has them.
	Filters string `json:"filters,omitempty"`
	// Incomplete is set if one of its records went to the dead letter, or was kept back though the pipeline has its object.
	Incomplete bool `json:"incomplete,omitempty"`
	// Unmarked is set if it has no marks.
	Unmarked bool `json:"unmarked,omitempty"`
	// Former is set until it begins, if what the last run left may not be part of it: other filters let that pass, or it is of a
	// snapshot that this one replaces.
	Former bool `json:"former,omitempty"`
	// OnDemand is set if it was requested of a running kubeferry: a restart begins it anew.
	OnDemand bool `json:"onDemand,omitempty"`
	// Unclean is set if a killed run may have sent objects of it that still count as due.
	Unclean bool `json:"unclean,omitempty"`
}

// wakeSnapshots starts the snapshots that were added.
func (w *watcher) wakeSnapshots() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// runSnapshots sends the snapshots that are pending, once the watch was opened, until ctx ends.
func (w *watcher) runSnapshots(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return
		}
		w.takeRequests()
		for n := range w.options.Pipelines {
			if w.claim(n) {
				running.Go(func() { w.runSnapshot(ctx, n) })
			}
		}
	}
}

// claim reports whether a pipeline has a snapshot that nothing sends yet.
func (w *watcher) claim(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	snapshot, pending := w.state.Snapshots[w.options.Pipelines[n]]
	if !pending || w.sending.Has(n) || snapshot.ID == "" && w.state.Gap != "" { // what is read behind a gap comes first
		return false
	}
	w.sending |= 1 << n
	return true
}

// unclaim ends the sending. The pipeline's next snapshot may have been requested since this one was completed.
func (w *watcher) unclaim(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sending &^= 1 << n
	w.wakeSnapshots()
}

// runSnapshot sends a snapshot to its end, or until ctx ends.
func (w *watcher) runSnapshot(ctx context.Context, n int) {
	defer w.unclaim(n)
	if w.secureRequest(ctx, n) != nil || w.awaitFormer(ctx, n) != nil || w.beginSnapshot(ctx, n) != nil {
		return // ctx has ended
	}
	id := w.snapshotID(n)
	page := metav1.ListOptions{Limit: pageSize} // of the newest state: an older one may lack a change that the watch has brought
	backoff := w.options.Backoff
	var again, unknown bool // of one reading of the list: changes may have been repeated, and the watch has not brought an object
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if id == "" || w.snapshotID(n) != id { // it was begun anew, since the state is read anew, or the resource is gone
			return true, nil
		}
		again = again || w.repeating(n)
		lacks, err := w.offerAll(ctx, n, id, &page, again)
		left := w.due(n)
		unknown = unknown || lacks
		if err != nil {
			if ctx.Err() == nil {
				w.logger.Warn("a snapshot was interrupted; it goes on with what is left",
					"pipeline", w.options.Pipelines[n], "left", left, "err", err)
			}
			return false, nil
		}
		done := !again || left == 0 && !unknown
		again, unknown = false, false
		return done, nil
	})
	if err == nil {
		_ = w.completeSnapshot(ctx, n, id) // an error means that ctx has ended
	}
}

// snapshotID is the id of a pipeline's snapshot; empty if it has none that has begun.
func (w *watcher) snapshotID(n int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Snapshots[w.options.Pipelines[n]].ID
}

// secureRequest commits the request for a snapshot on demand, before anything of it is sent: after a kill it has to begin anew.
func (w *watcher) secureRequest(ctx context.Context, n int) error {
	w.mu.Lock()
	requested := w.state.Snapshots[w.options.Pipelines[n]].OnDemand
	w.mu.Unlock()
	if !requested {
		return nil
	}
	return w.handler.Commit(ctx)
}

// formerWait is how long a snapshot waits for what the last run left. A receiver may refuse that for ever.
const formerWait = 30 * time.Second

// awaitFormer waits, before a snapshot begins, until what the last run left is settled, but no longer than formerWait. Behind the first
// mark it would count as what exists.
func (w *watcher) awaitFormer(ctx context.Context, n int) error {
	end := time.Now().Add(cmp.Or(w.options.formerWait, formerWait))
	for {
		w.mu.Lock()
		left := w.former(n)
		w.mu.Unlock()
		switch {
		case !left:
			return nil
		case time.Now().After(end):
			w.logger.Warn("a snapshot begins although the last run left records that are not delivered; it will not count as complete",
				"pipeline", w.options.Pipelines[n])
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// former reports whether the last run left something that is no part of a pending snapshot.
func (w *watcher) former(n int) bool {
	return w.state.Snapshots[w.options.Pipelines[n]].Former &&
		slices.ContainsFunc(w.from, func(watch string) bool { return w.handler.Recipient(n).Former(watch) })
}

// beginSnapshots begins the snapshots that are due before a state is read: what the known set lacks is sent as it is read, and is part of them.
// Without a position those are of all pipelines.
func (w *watcher) beginSnapshots(ctx context.Context, first bool) error {
	if w.options.Snapshot == delta.SnapshotNever {
		return nil
	}
	for n, pipeline := range w.options.Pipelines {
		w.mu.Lock()
		snapshot, pending := w.state.Snapshots[pipeline]
		if first && !pending {
			w.handler.Update(func() { w.state.setSnapshot(pipeline, PendingSnapshot{}) })
		}
		w.unlock()
		if !first && !pending || snapshot.OnDemand {
			continue
		}
		err := w.health.handOver(ctx, time.Now(), func(ctx context.Context) error { return w.beginSnapshot(ctx, n) })
		if err != nil {
			return err
		}
	}
	return nil
}

// readingID returns an id for the objects that the reading of a state adds, which go to several pipelines at once. Those that an
// edited selection adds may have been sent before they were left out: a transport would drop them as seen.
func (w *watcher) readingID() string {
	if w.state.Position == "" {
		return w.state.Snapshots[w.options.Pipelines[0]].ID
	}
	return ""
}

// beginSnapshot sends the first mark, unless that was sent, and makes all known objects due. What becomes known later is sent as a
// change, behind the mark.
func (w *watcher) beginSnapshot(ctx context.Context, n int) error {
	pipeline := w.options.Pipelines[n]
	var err error
	begin := func() bool {
		pending, ok := w.state.Snapshots[pipeline]
		if !ok || pending.ID != "" { // the resource is gone, or it began
			return true
		}
		onDemand := pending.OnDemand
		var hashed []objectKey
		if !onDemand { // else no commit writes that they are due
			hashed, err = w.hashedNames(ctx, func(o knownObject) bool { return !o.due.Has(n) })
		}
		if err != nil {
			return true
		}
		m, incomplete := w.mark(delta.Started, newSnapshotID()), w.former(n)
		return w.offerMark(n, m, func() {
			w.begun |= 1 << n
			w.known().begin(n, onDemand, hashed)
			if w.state.doubtful().Has(n) { // a transport that has seen the ADDED of a new object would drop it: the consumer would miss it
				w.state.Repetition = cmp.Or(w.state.Repetition, m.Snapshot)
			}
			w.state.setSnapshot(pipeline, PendingSnapshot{
				ID: m.Snapshot, Filters: w.options.filters(n), Incomplete: incomplete, OnDemand: onDemand,
				Unclean: pending.Unclean,
			})
		})
	}
	return cmp.Or(w.untilRoom(ctx, n, begin), err)
}

// completeSnapshot sends the last mark, once all records of the snapshot are settled.
func (w *watcher) completeSnapshot(ctx context.Context, n int, id string) error {
	if err := w.awaitNoneDue(ctx, n, id); err != nil {
		return err
	}
	died, err := w.handler.Recipient(n).Settled(ctx, w.id)
	if err != nil {
		return err
	}
	return w.untilRoom(ctx, n, func() bool {
		pipeline := w.options.Pipelines[n]
		snapshot := w.state.Snapshots[pipeline]
		if id == "" || snapshot.ID != id { // the resource is gone, or it was begun anew
			return true
		}
		m := w.mark(delta.Completed, snapshot.ID)
		m.Count, m.Incomplete = snapshot.Count, died || snapshot.Incomplete
		return w.offerMark(n, m, func() {
			w.ended[n] = SnapshotStatus{Snapshot: snapshot.ID, Sent: snapshot.Count, Done: true, Complete: !m.Incomplete}
			w.state.dropSnapshot(pipeline)
			if !m.Incomplete {
				delete(w.state.Doubt, pipeline)
			}
		})
	})
}

func (w *watcher) mark(phase delta.Phase, id string) *delta.Mark {
	return &delta.Mark{
		Watch: w.id, Resource: w.collection.resource, Namespace: w.collection.namespace, Snapshot: id, Phase: phase,
		Observed: time.Now(),
	}
}

func newSnapshotID() string { return strings.ToLower(rand.Text()[:16]) }

func (w *watcher) offerMark(n int, m *delta.Mark, record func()) bool {
	if w.silent(1<<n) != 0 || w.state.Snapshots[w.options.Pipelines[n]].Unmarked {
		w.handler.Update(record)
		return true
	}
	return w.handler.Recipient(n).OfferMark(m, record)
}

// untilRoom calls try, which must not block, until it returns true, and waits between for room in a pipeline.
func (w *watcher) untilRoom(ctx context.Context, n int, try func() bool) error {
	for {
		w.mu.Lock()
		done := try()
		w.unlock()
		if done {
			return nil
		}
		if err := w.handler.Recipient(n).Room(ctx); err != nil {
			return err
		}
	}
}

// silent returns those of some pipelines whose snapshots are recorded only.
func (w *watcher) silent(to PipelineSet) PipelineSet {
	if w.options.Snapshot != delta.SnapshotNever {
		return 0
	}
	for n, pipeline := range w.options.Pipelines {
		if w.state.Snapshots[pipeline].OnDemand {
			to &^= 1 << n
		}
	}
	return to
}

// awaitNoneDue waits until no object is due any more. What the list did not bring comes with changes.
func (w *watcher) awaitNoneDue(ctx context.Context, n int, id string) error {
	for {
		w.mu.Lock()
		noneDue := w.state.read() && w.known().due[n] == 0 || w.state.Snapshots[w.options.Pipelines[n]].ID != id
		if !noneDue && w.moved == nil {
			w.moved = make(chan struct{})
		}
		moved := w.moved
		w.mu.Unlock()
		if noneDue {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
