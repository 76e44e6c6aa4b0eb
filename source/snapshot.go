package source

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file sends what exists to one pipeline, beside the changes of a watch that has its state: to a pipeline that is new, and
// at every start to all if that is configured. The objects are listed page by page, and each is sent if it is in its known
// version. In another version there is a change that the watch has not brought yet, or has brought since the list was made:
// with that change the process function sends the object (emitDue). So the records of each object keep their order,
// and the watch waits for no snapshot. While it runs, all records of the watch in this pipeline name it, and a mark ends it: what a consumer
// has and does not name the snapshot, and is older, is gone. What is left to send is kept with the objects (views.due), in the state
// directory too, so that a snapshot goes on after a restart; after a kill it begins anew, as it is not known what was sent of it.

// PendingSnapshot is the state of a snapshot that is not complete, as it is kept.
type PendingSnapshot struct {
	// Begun is set once something of it was sent.
	Begun bool `json:"begun,omitempty"`
	// Era began with it: see [delta.Known.Era].
	Era uint32 `json:"era,omitempty"`
	// Sequence is what its records and its mark name: that of the list, or a later one.
	Sequence uint64 `json:"sequence,omitempty"`
	// Count is how many objects were sent.
	Count uint64 `json:"count,omitempty"`
	// Lacking is what earlier runs could not deliver of it.
	Lacking Lacking `json:"lacking,omitzero"`
	// OnDemand is set if it was requested of a running kubeferry: a restart begins it anew.
	OnDemand bool `json:"onDemand,omitempty"`
	// begunNow is set if it began in this run, read if the watch itself reads the state for it.
	begunNow, read bool
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
	if !pending || w.sending.Has(n) || !snapshot.Begun && w.state.Gap != "" { // what is read behind a gap comes first
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
	w.mu.Lock()
	begun := w.state.Snapshots[w.options.Pipelines[n]].Begun
	w.mu.Unlock()
	if !begun && w.startSnapshot(ctx, n) != nil {
		return // ctx has ended
	}
	w.mu.Lock()
	snapshot := w.state.Snapshots[w.options.Pipelines[n]]
	read := w.known().due[n] > 0 || !snapshot.read // else the watch has read the state
	w.mu.Unlock()
	if !snapshot.Begun { // the resource is gone
		return
	}
	pages := w.collection.pages() // of the newest state: an older one may lack a change that the watch has brought
	var unbrought uint64
	again := false // changes may have been repeated since the list began
	err := w.options.Backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		w.mu.Lock()
		runs, doubtful := w.runs(n, snapshot.Sequence), w.state.doubtful().Has(n)
		w.mu.Unlock()
		if !read || !runs {
			return true, nil
		}
		again = again || doubtful
		err := w.offerAll(ctx, n, snapshot.Sequence, pages, &unbrought)
		w.mu.Lock()
		left := w.known().due[n]
		w.mu.Unlock()
		if err != nil {
			if ctx.Err() == nil {
				w.logger.Warn("a snapshot was interrupted; it goes on with what is left",
					"pipeline", w.options.Pipelines[n], "left", left, "err", err)
			}
			return false, nil
		}
		done := !again || left == 0
		again = false
		return done, nil
	})
	if err == nil {
		_ = w.completeSnapshot(ctx, n, snapshot.Sequence, unbrought) // an error means that ctx has ended
	}
}

// runs reports whether a pipeline's snapshot goes on: it has not begun anew, and the resource is not gone. w.mu is held.
func (w *watcher) runs(n int, sequence uint64) bool {
	snapshot := w.state.Snapshots[w.options.Pipelines[n]]
	return snapshot.Begun && snapshot.Sequence == sequence
}

// startSnapshot begins a snapshot beside the open watch, at the resource version that the API server has: what it lists from now on is not
// before that. A snapshot that was requested is committed first: after a kill it has to begin anew. An error means that ctx has ended.
func (w *watcher) startSnapshot(ctx context.Context, n int) error {
	if err := w.handler.Commit(ctx); err != nil {
		return err
	}
	return w.options.Backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		newest, err := w.collection.newest(ctx)
		if err != nil {
			if ctx.Err() == nil {
				w.logger.Warn("a snapshot cannot begin", "err", err)
			}
			return false, nil
		}
		w.mu.Lock()
		defer w.unlock()
		w.beginSnapshot(n, versionNumber(newest.resourceVersion), false)
		return true, nil
	})
}

// beginSnapshots begins the snapshots that are due before a state is read: what the known set lacks is sent as it is read, and is part of them.
// Without a position those are of all pipelines. If selectors were edited, they begin anew with each list: what an earlier list had and this one
// lacks is announced only to pipelines with `onLeave: deleted`, and the mark has to hide it from the others. w.mu is held.
func (w *watcher) beginSnapshots(first bool) {
	if w.options.Snapshot == delta.SnapshotNever {
		return
	}
	for n, pipeline := range w.options.Pipelines {
		snapshot, pending := w.state.Snapshots[pipeline]
		switch {
		case first && !pending:
			w.handler.Update(func() { w.state.setSnapshot(pipeline, PendingSnapshot{}) })
		case snapshot.Begun && w.state.Reselected:
			w.handler.Update(func() { w.state.beginAnew(pipeline, snapshot) })
		}
		w.beginSnapshot(n, w.listed, true)
	}
}

// beginSnapshot makes all known objects due, if a snapshot is pending and has not begun. From then on all records of the watch name it in this
// pipeline. list is the resource version of the list, or of a state before it; read is set if the watch reads that itself. w.mu is held.
func (w *watcher) beginSnapshot(n int, list uint64, read bool) {
	pipeline := w.options.Pipelines[n]
	pending, ok := w.state.Snapshots[pipeline]
	if !ok || pending.Begun { // the resource is gone, or it began
		return
	}
	sequence := max(w.sequence(list), w.state.Named[pipeline]+1) // no two snapshots have the same
	w.handler.Update(func() {
		w.state.setSnapshot(pipeline, PendingSnapshot{
			Begun: true, Era: w.known().begin(n), Sequence: sequence, OnDemand: pending.OnDemand, begunNow: true, read: read,
		})
	})
}

// completeSnapshot sends the mark, once the watch has brought what the list has shown, and all that was sent before is settled. unbrought is
// the highest resource version that the list has shown, and the watch had not brought.
func (w *watcher) completeSnapshot(ctx context.Context, n int, sequence, unbrought uint64) error {
	err := w.await(ctx, func() bool {
		brought := w.state.read() && w.known().due[n] == 0 && (unbrought == 0 || versionNumber(w.state.Position) >= unbrought)
		return brought || !w.runs(n, sequence)
	})
	if err != nil {
		return err
	}
	if err := w.handler.Recipient(n).Settled(ctx, w.id); err != nil {
		return err
	}
	return w.untilRoom(ctx, n, func() bool {
		if !w.runs(n, sequence) {
			return true
		}
		pipeline := w.options.Pipelines[n]
		snapshot := w.state.Snapshots[pipeline]
		lacking := w.lacking(n)
		m := w.mark(snapshot.Sequence)
		m.Count, m.Incomplete, m.Except = snapshot.Count, lacking.More, lacking.Objects
		return w.offerMark(n, m, func() {
			w.snapshotEnds[n] = SnapshotStatus{Sequence: snapshot.Sequence, Sent: snapshot.Count, Done: true, Complete: lacking.none()}
			w.state.dropSnapshot(pipeline)
			w.state.keepNaming(pipeline, snapshot.Sequence)
			if !m.Incomplete {
				delete(w.state.Doubt, pipeline)
			}
		})
	})
}

// maxExcept is how many objects a mark names whose records became dead letters.
const maxExcept = 100

// lacking returns what a pipeline has not got of its snapshot, in this run or before.
func (w *watcher) lacking(n int) Lacking {
	snapshot := w.state.Snapshots[w.options.Pipelines[n]]
	lacking := w.handler.Recipient(n).Lacking(w.id, snapshot.Sequence)
	lacking.Objects = append(lacking.Objects, snapshot.Lacking.Objects...)
	slices.Sort(lacking.Objects)
	lacking.Objects = slices.Compact(lacking.Objects)
	lacking.More = lacking.More || lacking.Unreadable && !snapshot.begunNow || snapshot.Lacking.More || len(lacking.Objects) > maxExcept
	lacking.Objects = lacking.Objects[:min(len(lacking.Objects), maxExcept)]
	return lacking
}

// beginAnew makes a snapshot begin for a pipeline, in place of one that is not complete.
func (s *state) beginAnew(pipeline string, last PendingSnapshot) {
	s.keepNaming(pipeline, last.Sequence)
	s.setSnapshot(pipeline, PendingSnapshot{OnDemand: last.OnDemand})
}

// named returns what a record names of the snapshot that runs in a pipeline, or of the last one if that is above the record: its mark would hide
// the record.
func (s *state) named(pipeline string, d *delta.Delta) uint64 {
	if snapshot, pending := s.Snapshots[pipeline]; pending && snapshot.Begun {
		return snapshot.Sequence
	}
	if last := s.Named[pipeline]; d.Sequence < last {
		return last
	}
	return 0
}

// namedIn returns what [Recipients.Snapshots] has.
func (s *state) namedIn(pipelines []string, d *delta.Delta) []uint64 {
	var all []uint64
	for n, pipeline := range pipelines {
		if sequence := s.named(pipeline, d); sequence > 0 {
			if all == nil {
				all = make([]uint64, len(pipelines))
			}
			all[n] = sequence
		}
	}
	return all
}

// keepNaming notes the sequence of a snapshot that has ended.
func (s *state) keepNaming(pipeline string, sequence uint64) {
	if s.Named == nil {
		s.Named = map[string]uint64{}
	}
	s.Named[pipeline] = max(s.Named[pipeline], sequence)
}

func (w *watcher) mark(sequence uint64) *delta.Mark {
	return &delta.Mark{
		Watch: w.id, Resource: w.collection.resource, Namespace: w.collection.namespace, SnapshotSequence: sequence, Observed: time.Now(),
	}
}

func (w *watcher) offerMark(n int, m *delta.Mark, record func()) bool {
	if w.silent(1<<n) != 0 {
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
