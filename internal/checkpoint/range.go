package checkpoint

import (
	"bytes"

	bolt "go.etcd.io/bbolt"
)

// Range is a place in a file that is copied; nil is its beginning. It is the keys that lead to the last entry read, through
// buckets.
type Range [][]byte

// ReadRange returns about maxBytes of what stands behind a place, as changes that make it, and the next place; nil at the
// end of the file. commit is the one that they were read at. It takes a short transaction of its own: a long one would hold
// back the growth of the file, and so each commit.
func (s *Store) ReadRange(from Range, maxBytes int) (changes Changes, next Range, commit uint64, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		var info Info
		if err := getJSON(tx.Bucket(metaBucket), metaKey, &info); err != nil {
			return err
		}
		if info.Replica != nil {
			commit = info.Replica.Commit
		}
		r := rangeReader{maxBytes: maxBytes}
		next = r.read(tx.Cursor(), nil, from)
		changes = r.changes
		return nil
	})
	return changes, next, commit, err
}

type rangeReader struct {
	changes  Changes
	maxBytes int
}

// read appends what a bucket holds behind a place in it, and returns where it stopped; nil at the end of the bucket.
func (r *rangeReader) read(cursor *bolt.Cursor, path [][]byte, from Range) (stopped Range) {
	var key, value []byte
	if len(from) == 0 {
		key, value = cursor.First()
		r.enter(path)
	} else {
		key, value = cursor.Seek(from[0])
		if len(from) == 1 && string(key) == string(from[0]) { // read already
			key, value = cursor.Next()
		}
		r.enter(path)
	}
	for ; key != nil; key, value = cursor.Next() {
		if value != nil {
			r.changes = append(r.changes, changePut)
			r.changes = appendBytes(appendBytes(r.changes, key), value)
			if len(r.changes) >= r.maxBytes {
				return Range{bytes.Clone(key)}
			}
			continue
		}
		var inside Range
		if len(from) > 1 && string(key) == string(from[0]) {
			inside = from[1:]
		}
		name := bytes.Clone(key)
		if stopped := r.read(cursor.Bucket().Bucket(key).Cursor(), append(path[:len(path):len(path)], name), inside); stopped != nil {
			return append(Range{name}, stopped...)
		}
		r.enter(path)
	}
	return nil
}

// enter writes which bucket the next changes are about. The root holds buckets only.
func (r *rangeReader) enter(path [][]byte) {
	if len(path) > 0 {
		r.changes = appendEnter(r.changes, path)
	}
}
