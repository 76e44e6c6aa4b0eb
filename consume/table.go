package consume

import "iter"

// Table holds what exists. For each cluster and pipeline it keeps two maxima: the highest record of each object, and the highest complete mark
// of each resource and namespace. So records may arrive in any order, any number of times, and from several partitions.
//
// A Table keeps its records in memory, also those of deleted objects, until [Table.Forget]. Only one goroutine may use it at a time.
type Table struct {
	rows  map[rowKey]*Record
	marks map[scope]string
}

// rowKey names an object as a pipeline sends it.
type rowKey struct {
	pipeline string
	Key
}

// scope is what a snapshot is about. An empty namespace stands for all of them.
type scope struct {
	cluster, pipeline string
	resource          Resource
	namespace         string
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{rows: map[rowKey]*Record{}, marks: map[scope]string{}} }

// Apply takes a record into the table. It reports whether the record was higher than what the table had, so that the table has changed. It
// ignores gap records, incomplete marks, and unknown types. The caller must not modify the record's Object afterwards.
func (t *Table) Apply(r *Record) bool {
	switch {
	case r.IsChange():
		key := rowKey{r.Pipeline, r.Key()}
		if before, exists := t.rows[key]; exists && !r.Above(before) {
			return false
		}
		kept := *r
		t.rows[key] = &kept
		return true
	case r.Type == Mark && r.Complete:
		s := scope{r.Cluster, r.Pipeline, r.Resource, r.Namespace}
		if r.SnapshotSequence <= t.marks[s] {
			return false
		}
		t.marks[s] = r.SnapshotSequence
		return true
	}
	return false
}

// below reports whether a record is below its mark: the higher of that of its namespace and that of all namespaces.
func (t *Table) below(r *Record) bool {
	s := scope{r.Cluster, r.Pipeline, r.Resource, r.Namespace}
	mark := t.marks[s]
	s.namespace = ""
	mark = max(mark, t.marks[s])
	return max(r.Sequence, r.SnapshotSequence) < mark
}

func (t *Table) exists(r *Record) bool { return r.Type != Deleted && !t.below(r) }

// Get returns the latest record that a pipeline has sent of an object, and true, or false if the object does not exist.
func (t *Table) Get(pipeline string, key Key) (Record, bool) {
	r, ok := t.rows[rowKey{pipeline, key}]
	if !ok || !t.exists(r) {
		return Record{}, false
	}
	return *r, true
}

// All returns the latest record of each object that exists, in any order. An object that several pipelines send comes once for each of them.
func (t *Table) All() iter.Seq2[Key, Record] {
	return func(yield func(Key, Record) bool) {
		for key, r := range t.rows {
			if t.exists(r) && !yield(key.Key, *r) {
				return
			}
		}
	}
}

// Forget removes the records that are below their mark. It returns those of them that are not a DELETED: their objects are gone, and no DELETED
// has come for them. If a removed record comes again, the mark hides it.
func (t *Table) Forget() (gone []Record) {
	for key, r := range t.rows {
		if !t.below(r) {
			continue
		}
		if r.Type != Deleted {
			gone = append(gone, *r)
		}
		delete(t.rows, key)
	}
	return gone
}
