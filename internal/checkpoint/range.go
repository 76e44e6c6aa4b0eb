package checkpoint

import (
	"bytes"
	"cmp"

	bolt "go.etcd.io/bbolt"
)

// Range is a place in a file that is copied: the last entry that was read. nil is the beginning of the file.
type Range struct{ bucket, key []byte }

// ReadRange returns about maxBytes of what stands behind a place, as changes that make it, and the next place; nil at the
// end of the file. commit is the one that they were read at. It takes a short transaction of its own: a long one would hold
// back the growth of the file, and so each commit.
func (s *Store) ReadRange(from *Range, maxBytes int) (changes Changes, next *Range, commit uint64, err error) {
	from = cmp.Or(from, &Range{})
	err = s.db.View(func(tx *bolt.Tx) error {
		var info Info
		if err := getJSON(bucketOf(tx, metaBucket), metaKey, &info); err != nil {
			return err
		}
		if info.Replica != nil {
			commit = info.Replica.Commit
		}
		names := tx.Cursor()
		for name, _ := names.Seek(from.bucket); name != nil; name, _ = names.Next() {
			changes = appendBytes(append(changes, changeInto), name)
			entries := tx.Bucket(name).Cursor()
			key, value := entries.First()
			if bytes.Equal(name, from.bucket) {
				if key, value = entries.Seek(from.key); bytes.Equal(key, from.key) { // read already
					key, value = entries.Next()
				}
			}
			for ; key != nil; key, value = entries.Next() {
				changes = appendBytes(appendBytes(append(changes, changePut), key), value)
				if len(changes) >= maxBytes {
					next = &Range{bytes.Clone(name), bytes.Clone(key)}
					return nil
				}
			}
		}
		return nil
	})
	return changes, next, commit, err
}
