package source

import (
	"encoding/json"
	"maps"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file returns what a commit writes of watches: of each its [Meta], and the known objects that changed since the last commit.

// Capture returns what changed since the last call, watch by watch. It is called while nothing is being sent.
// Exactly one call of Committed or Failed follows before the next Capture.
func (s *Source) Capture() []delta.WatchChange {
	var changes []delta.WatchChange
	for _, w := range s.all() {
		lacking := w.lackingNow()
		if !w.state.changed && maps.EqualFunc(lacking, w.state.lacking, Lacking.equal) && len(w.state.known.changed) == 0 {
			continue
		}
		w.state.changed, w.state.captured, w.state.lacking = false, true, lacking
		meta, err := json.Marshal(w.state.meta())
		if err != nil {
			panic(err) // a struct of strings
		}
		put, remove := w.state.known.capture()
		changes = append(changes, delta.WatchChange{Watch: w.id, Meta: meta, Put: put, Remove: remove})
	}
	return changes
}

// lackingNow returns what the pipelines lack of the snapshots that have begun.
func (w *watcher) lackingNow() map[string]Lacking {
	var all map[string]Lacking
	for n, pipeline := range w.options.Pipelines {
		if !w.state.Snapshots[pipeline].Begun {
			continue
		}
		if lacking := w.lacking(n); !lacking.none() {
			if all == nil {
				all = map[string]Lacking{}
			}
			all[pipeline] = lacking
		}
	}
	return all
}

// meta returns what a commit writes.
func (s *state) meta() Meta {
	meta := s.Meta
	meta.Era, meta.Snapshots = s.known.era, maps.Clone(meta.Snapshots)
	for n, pipeline := range s.Pipelines {
		snapshot, pending := meta.Snapshots[pipeline]
		switch {
		case pending:
			snapshot.Lacking = s.lacking[pipeline]
			meta.Snapshots[pipeline] = snapshot
		case s.requested.Has(n):
			if meta.Snapshots == nil {
				meta.Snapshots = map[string]PendingSnapshot{}
			}
			meta.Snapshots[pipeline] = PendingSnapshot{OnDemand: true}
		}
	}
	return meta
}

// capture returns what changed since the last call. A call of committed or failed follows.
func (k *knownSet) capture() (put, remove []delta.Known) {
	put, k.writing = make([]delta.Known, 0, len(k.changed)), map[objectKey][]byte{}
	for key := range k.changed {
		object, exists := k.find(key)
		if !exists {
			remove = append(remove, delta.Known{Namespace: key.namespace.Value(), Name: key.name})
			continue
		}
		known := delta.Known{
			Namespace: key.namespace.Value(), Name: key.name, Version: object.version,
			Filtered: uint64(object.filtered), Had: uint64(object.had), Due: uint64(object.due), Era: k.era,
		}
		if known.Retained = object.retained; known.Retained {
			if known.Previous = k.previous.find(k, key); known.Previous != nil { // else it is on disk
				k.writing[key] = known.Previous
			}
		}
		put = append(put, known)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changed, k.captured = make(map[objectKey]struct{}, len(k.changed)), k.changed
	return put, remove
}

// CaptureEnded returns the ids of the watches that have ended: the commit forgets them, before it writes what Capture returns.
func (s *Source) CaptureEnded() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.forgotten = nil, s.ended
	return s.forgotten
}

// Committed is called when what Capture and CaptureEnded returned last is on disk.
func (s *Source) Committed() {
	s.mu.Lock()
	s.forgotten = nil
	s.mu.Unlock()
	for _, w := range s.all() {
		w.state.captured = false
		w.state.known.committed()
	}
}

// committed releases what was captured last: it is on disk.
func (k *knownSet) committed() {
	k.previous.committed(k, k.writing)
	k.writing = nil
	k.mu.Lock()
	defer k.mu.Unlock()
	k.captured = nil
}

// Failed is called when what Capture and CaptureEnded returned last may not be on disk: the next call returns it again, as it is by
// then. It is called while nothing is being sent.
func (s *Source) Failed() {
	s.mu.Lock()
	s.ended, s.forgotten = append(s.forgotten, s.ended...), nil
	s.mu.Unlock()
	for _, w := range s.all() {
		w.state.changed = w.state.changed || w.state.captured
		w.state.captured = false
		w.state.known.failed()
	}
}

// failed makes what was captured last count as changed again: it may not be on disk.
func (k *knownSet) failed() {
	k.mu.Lock()
	maps.Copy(k.changed, k.captured)
	k.captured = nil
	k.mu.Unlock()
	k.writing = nil
	k.previous.failed()
}
