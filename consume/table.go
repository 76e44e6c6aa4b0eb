package consume

import "iter"

// Table holds what exists. It is two maxima: the highest record of each object, and the highest complete mark of each resource and
// namespace, for each cluster and pipeline. So the order in which records arrive does not matter, nor whether they come again, from whatever
// partition or place.
//
// A Table is for one goroutine.
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

// Apply applies a record, and reports whether the table keeps it. It ignores gaps, and what it does not know.
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

// Get returns the latest record of an object that exists, as a pipeline has sent it.
func (t *Table) Get(pipeline string, key Key) (Record, bool) {
	r, ok := t.rows[rowKey{pipeline, key}]
	if !ok || !t.exists(r) {
		return Record{}, false
	}
	return *r, true
}

// All returns the latest record of each object that exists, in no order.
func (t *Table) All() iter.Seq2[Key, Record] {
	return func(yield func(Key, Record) bool) {
		for key, r := range t.rows {
			if t.exists(r) && !yield(key.Key, *r) {
				return
			}
		}
	}
}

// Forget drops what is below its mark, deleted or not, and returns the last records of the objects among them that were not deleted: those
// that a snapshot has shown to be gone. What comes again is hidden by the mark.
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
