package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Changes are puts and removes of keys, encoded. To apply them twice is the same as once, and they do not depend on what is
// there.
type Changes []byte

// What a change does. Each is a byte, followed by byte strings, each with its length before it.
const (
	changeInto   = 'I' // the name of a bucket, which is made if it does not exist: what follows is about it
	changePut    = 'P' // key, value
	changeRemove = 'R' // key
	changeDrop   = 'D' // the name of a bucket, which need not exist
)

// chunkSize is how long a chunk of changes is before the next one begins.
const chunkSize = 1 << 20

// recorder writes what a commit changes, and collects it for standbys if keeps is set.
type recorder struct {
	tx     *bolt.Tx
	keeps  bool
	chunks []Changes
	chunk  Changes
	inside *bucket // that chunk is about at its end
}

// bucket returns a bucket, and makes it if it does not exist.
func (r *recorder) bucket(name string) (*bucket, error) {
	found, err := r.tx.CreateBucketIfNotExists([]byte(name))
	if err != nil {
		return nil, err
	}
	b := &bucket{Bucket: found, name: name, to: r}
	r.enter(b) // also if it exists: a commit that failed may have made it on disk, and not at the standbys
	return b, nil
}

// existing returns a bucket; nil if it does not exist.
func (r *recorder) existing(name string) *bucket {
	if found := r.tx.Bucket([]byte(name)); found != nil {
		return &bucket{Bucket: found, name: name, to: r}
	}
	return nil
}

// drop deletes a bucket, if it exists: a commit that failed may have deleted it on disk, and not at the standbys.
func (r *recorder) drop(name string) error {
	r.add(changeDrop, []byte(name))
	return dropBucket(r.tx, []byte(name))
}

func dropBucket(tx *bolt.Tx, name []byte) error {
	if err := tx.DeleteBucket(name); !errors.Is(err, bolterrors.ErrBucketNotFound) {
		return err
	}
	return nil
}

func (r *recorder) add(kind byte, fields ...[]byte) {
	if !r.keeps {
		return
	}
	r.chunk = append(r.chunk, kind)
	for _, field := range fields {
		r.chunk = appendBytes(r.chunk, field)
	}
}

// enter makes a bucket the one that what follows is about.
func (r *recorder) enter(b *bucket) {
	if len(r.chunk) >= chunkSize {
		r.end()
	}
	if r.inside != b {
		r.inside = b
		r.add(changeInto, []byte(b.name))
	}
}

// end returns all that was collected.
func (r *recorder) end() []Changes {
	if len(r.chunk) > 0 {
		r.chunks, r.chunk, r.inside = append(r.chunks, r.chunk), nil, nil
	}
	return r.chunks
}

func appendBytes(c Changes, b []byte) Changes {
	return append(binary.AppendUvarint(c, uint64(len(b))), b...)
}

// bucket is a bbolt bucket whose changes are recorded.
type bucket struct {
	*bolt.Bucket
	name string
	to   *recorder
}

// Put is bbolt's, as is Delete.
func (b *bucket) Put(key, value []byte) error {
	b.to.enter(b)
	b.to.add(changePut, key, value)
	return b.Bucket.Put(key, value)
}

func (b *bucket) Delete(key []byte) error {
	b.to.enter(b)
	b.to.add(changeRemove, key)
	return b.Bucket.Delete(key)
}

var errChanges = errors.New("malformed changes of a state file")

// apply writes the changes.
func (c Changes) apply(tx *bolt.Tx) error {
	var inside *bolt.Bucket
	in := reader{rest: c}
	for len(in.rest) > 0 {
		kind, key, value := in.byte(), in.bytes(), []byte(nil)
		if kind == changePut {
			value = in.bytes()
		}
		if in.bad || inside == nil && (kind == changePut || kind == changeRemove) {
			return errChanges
		}
		var err error
		switch kind {
		case changeInto:
			if inside, err = tx.CreateBucketIfNotExists(key); err == nil {
				inside.FillPercent = 0.9 // keys come in order, as the leader wrote them
			}
		case changePut:
			err = inside.Put(key, value)
		case changeRemove:
			err = inside.Delete(key)
		case changeDrop:
			err = dropBucket(tx, key)
		default:
			return errChanges
		}
		if err != nil {
			return fmt.Errorf("apply a change: %w", err)
		}
	}
	return nil
}

// reader reads what the append functions write; bad is set once that does not fit.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		r.bad = true
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}
