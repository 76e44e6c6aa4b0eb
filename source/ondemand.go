package source

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// SnapshotStatus says how far a snapshot of one watch for one pipeline is, or how it ended.
type SnapshotStatus struct {
	Source    string `json:"source"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	// Sequence is what its records and its mark name, as a resource version; 0 until it has begun.
	Sequence uint64 `json:"sequence,omitempty"`
	// Sent and Left count objects. Sent are those that passed the filters.
	Sent uint64 `json:"sent"`
	Left int    `json:"left"`
	// Undelivered counts records that were sent and are not settled, and WaitsFor is what these wait for, in words, if something fails.
	Undelivered int    `json:"undelivered,omitempty"`
	WaitsFor    string `json:"waitsFor,omitempty"`
	// Done is set once the mark is settled, or the resource is gone. Complete is false then, and if a record or a mark went to the
	// dead letter.
	Done     bool `json:"done,omitempty"`
	Complete bool `json:"complete,omitempty"`
	// Missing is set if there is no snapshot, since the resource does not exist.
	Missing bool `json:"missing,omitempty"`
}

// Progress describes how far a snapshot is that is not done.
func (s *SnapshotStatus) Progress() string {
	text := fmt.Sprintf("%d sent, %d left, %d not delivered", s.Sent, s.Left, s.Undelivered)
	if s.WaitsFor != "" {
		text += "; it waits for " + s.WaitsFor
	}
	return text
}

// Errors of RequestSnapshot.
var (
	ErrSnapshotPending = errors.New("a snapshot is under way")
	ErrNotWatching     = errors.New("the state was not read yet")
)

// RequestSnapshot begins snapshots of the watches of a resource, or of all whose resource exists if it is empty, for a pipeline, and
// returns how many watches there are: none if the pipeline takes nothing of it from this source. It begins all of them or none. If try is
// set, it only checks. Only one goroutine may call it at a time.
func (s *Source) RequestSnapshot(pipeline, resource string, try bool) (watches int, err error) {
	n := slices.Index(s.options.Pipelines, pipeline)
	if n < 0 {
		return 0, nil
	}
	var begin, leftOut []*watcher
	for _, w := range s.all() {
		if !w.matches(resource) {
			continue
		}
		watches++
		if refused := w.mayRequest(n); resource == "" && errors.Is(refused, ErrMissing) {
			leftOut = append(leftOut, w)
		} else {
			err, begin = errors.Join(err, refused), append(begin, w)
		}
	}
	if err != nil || try {
		return watches, err
	}
	for _, w := range leftOut {
		w.handler.Exclusive(func() { delete(w.snapshotEnds, n) }) // of what is gone
	}
	for _, w := range begin {
		w.request(n)
	}
	return watches, nil
}

// Snapshots returns the snapshots for a pipeline that are pending, and the last that was completed of each other watch.
func (s *Source) Snapshots(pipeline, resource string) (all []SnapshotStatus) {
	n := slices.Index(s.options.Pipelines, pipeline)
	for _, w := range s.all() {
		if n >= 0 && w.matches(resource) {
			all = append(all, w.snapshotStatus(n)...)
		}
	}
	return all
}

func (w *watcher) matches(resource string) bool {
	return resource == "" || resource == delta.ResourceName(w.collection.resource)
}

func (w *watcher) missing() bool { return w.health.status().State == StateMissing }

func (w *watcher) mayRequest(n int) (err error) {
	w.handler.Exclusive(func() {
		if _, pending := w.state.Snapshots[w.options.Pipelines[n]]; !w.state.read() && w.missing() { // one that is pending waits for it
			err = ErrMissing
		} else if pending || w.state.requested.Has(n) {
			err = ErrSnapshotPending
		} else if !w.state.read() {
			err = ErrNotWatching
		}
	})
	if err != nil {
		err = fmt.Errorf("source %q: %s: %w", w.options.Name, delta.ResourceName(w.collection.resource), err)
	}
	return err
}

// request has a snapshot begin when the watch takes it up: one that a full backlog blocks does so later.
func (w *watcher) request(n int) {
	w.handler.Exclusive(func() { w.state.requested, w.state.changed = w.state.requested|1<<n, true })
	w.wakeSnapshots()
}

// takeRequests makes the snapshots pending that were requested.
func (w *watcher) takeRequests() {
	w.mu.Lock()
	defer w.unlock()
	w.handler.Update(func() {
		for n, pipeline := range w.options.Pipelines {
			if w.state.requested.Has(n) {
				delete(w.snapshotEnds, n)
				w.state.setSnapshot(pipeline, PendingSnapshot{OnDemand: true})
			}
		}
		w.state.requested = 0
	})
}

// endSnapshots ends the snapshots of a resource that is gone, before they are forgotten. It is called inside the handler's calls.
func (w *watcher) endSnapshots() {
	for n, pipeline := range w.options.Pipelines {
		if pending, ok := w.state.Snapshots[pipeline]; ok || w.state.requested.Has(n) {
			w.snapshotEnds[n] = SnapshotStatus{Sequence: pending.Sequence, Sent: pending.Count, Done: true}
		}
	}
	w.state.requested = 0
}

func (w *watcher) snapshotStatus(n int) []SnapshotStatus {
	var status SnapshotStatus
	var known bool
	w.handler.Exclusive(func() {
		pending, ok := w.state.Snapshots[w.options.Pipelines[n]]
		switch {
		case ok && !w.state.read() && w.missing(): // it waits for the resource
		case ok:
			status, known = SnapshotStatus{Sequence: pending.Sequence, Sent: pending.Count, Left: w.known().due[n]}, true
		case w.state.requested.Has(n):
			known = true
		default:
			status, known = w.snapshotEnds[n]
		}
	})
	switch {
	case !known && !w.missing():
		return nil
	case !known:
		status = SnapshotStatus{Done: true, Complete: true, Missing: true}
	case !status.Done || status.Complete: // the mark was sent, at the most
		recipient := w.handler.Recipient(n)
		status.Undelivered, status.WaitsFor = recipient.Undelivered(w.id)
		status.Complete = status.Complete && !recipient.Lacking(w.id, status.Sequence).Mark
		status.Done = status.Done && (status.Undelivered == 0 || !status.Complete)
	}
	status.Source, status.Resource, status.Namespace = w.options.Name, delta.ResourceName(w.collection.resource), w.collection.namespace
	return []SnapshotStatus{status}
}
