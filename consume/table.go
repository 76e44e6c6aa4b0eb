package consume

import (
	"iter"
	"maps"
)

// Table holds what exists: the latest record of each object that is not deleted. It takes the records of one stream, in the order
// in which they arrive, from the first one on or from a `kubeferry snapshot` on. Where several pipelines send to the stream, leave out
// the marks of all but one ([Record.Pipeline]) whose filters pass whatever the others send.
//
// Apply what stands in the stream once: what a snapshot has removed would come back if it were read again. Whoever goes back to an
// earlier place, or gets a partition back from another member of the group, skips what was applied, or begins with a new Table.
//
// A Table is for one goroutine.
type Table struct {
	objects map[Key]*entry
	// gone has the places of objects that were deleted, so that a late repetition does not bring them back, and the ids of records
	// without a place.
	gone      recent
	snapshots map[scope]snapshot
	arrivals  uint64
}

type entry struct {
	record Record
	seen   uint64 // the last arrival of a record of the object, repetitions included
}

// scope is what a snapshot is about. An empty namespace stands for all of them.
type scope struct {
	cluster   string
	resource  Resource
	namespace string
}

type snapshot struct {
	id      string
	started uint64 // the arrival of its first mark
}

// NewTable returns an empty table that keeps so many deleted objects, as [NewFilter] does.
func NewTable(deleted int) *Table {
	return &Table{objects: map[Key]*entry{}, gone: newRecent(deleted), snapshots: map[scope]snapshot{}}
}

// Apply applies a record. gone are the last records of the objects that a complete snapshot has shown to be gone without a DELETED;
// there are none for other records. A record that is not [New] leaves the table as it is.
func (t *Table) Apply(r *Record) (verdict Verdict, gone []Record) {
	t.arrivals++
	switch {
	case r.IsChange():
		return t.applyChange(r), nil
	case r.Type == Mark:
		return t.applyMark(r)
	default: // a gap, or something of a later version
		return t.once(r), nil
	}
}

// Get returns the latest record of an object that exists.
func (t *Table) Get(key Key) (Record, bool) {
	e, ok := t.objects[key]
	if !ok {
		return Record{}, false
	}
	return e.record, true
}

// All returns the latest record of each object that exists, in no order.
func (t *Table) All() iter.Seq2[Key, Record] {
	return func(yield func(Key, Record) bool) {
		for key, e := range maps.All(t.objects) {
			if !yield(key, e.record) {
				return
			}
		}
	}
}

// Len returns how many objects exist.
func (t *Table) Len() int { return len(t.objects) }

func (t *Table) applyChange(r *Record) Verdict {
	name, place := storeKey(r)
	e, exists := t.objects[r.Key()]
	if exists {
		e.seen = t.arrivals
	}
	before, known := t.gone.get(name)
	switch {
	case exists && place != "":
		before.place, known = e.record.Place(), true
	case !exists && place == "" && r.Snapshot && r.Type != Deleted:
		known = false // it was gone, and is there again, with the id of before
	}
	if verdict := compare(before.place, place, known); verdict != New {
		return verdict
	}
	if place == "" || r.Type == Deleted {
		t.gone.put(name, change{place: place})
	}
	if r.Type == Deleted {
		delete(t.objects, r.Key())
	} else {
		t.objects[r.Key()] = &entry{record: *r, seen: t.arrivals}
	}
	return New
}

// applyMark begins or ends a snapshot. A repeated mark does neither: what stands between the marks is repeated with it, or was seen. One
// that was a dead letter begins none: a later snapshot may have begun.
func (t *Table) applyMark(r *Record) (Verdict, []Record) {
	if r.Replayed && r.Phase == Started {
		return Late, nil
	}
	verdict := t.once(r)
	if verdict != New {
		return verdict, nil
	}
	s := scope{r.Cluster, r.Resource, r.Namespace}
	switch begun := t.snapshots[s]; {
	case r.Phase == Started:
		t.snapshots[s] = snapshot{r.SnapshotID, t.arrivals}
	case r.Phase == Completed && begun.id == r.SnapshotID: // else another one has begun, or its begin was not read
		delete(t.snapshots, s)
		if r.Complete {
			return verdict, t.sweep(s, begun.started)
		}
	}
	return verdict, nil
}

// sweep removes the objects not seen since an arrival, and keeps no place: an object that a filter kept back for a while may come back
// at the same place.
func (t *Table) sweep(s scope, since uint64) (gone []Record) {
	for key, e := range t.objects {
		r := &e.record
		if e.seen > since || r.Cluster != s.cluster || r.Resource != s.resource || s.namespace != "" && r.Namespace != s.namespace {
			continue
		}
		gone = append(gone, *r)
		delete(t.objects, key)
	}
	return gone
}

// once returns the verdict on a record that has no place.
func (t *Table) once(r *Record) Verdict {
	if _, known := t.gone.get(r.ID); known {
		return Repeated
	}
	t.gone.put(r.ID, change{})
	return New
}
