package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// Changes are puts and removes of keys, encoded. To apply them twice is the same as once, and they do not depend on what is
// there.
type Changes []byte

// What a change does. Each is a byte, followed by byte strings, each with its length before it. A bucket that does not exist is made.
const (
	changeTop    = 'T' // the name of a bucket at the top of the file: what follows is about it
	changeInto   = 'I' // the name of a bucket in the one before: what follows is about it
	changePut    = 'P' // key, value
	changeRemove = 'R' // key
	changeDrop   = 'D' // the name of a bucket in it
)

// chunkSize is how long a chunk of changes is before the next one begins.
const chunkSize = 1 << 20

// recorder collects what a commit changes. A nil recorder collects nothing.
type recorder struct {
	chunks []Changes
	chunk  Changes
	inside *bucket // that chunk is about at its end
}

// of returns a bucket at the top of the file, which must exist.
func (r *recorder) of(tx *bolt.Tx, name []byte) *bucket {
	return &bucket{Bucket: tx.Bucket(name), path: [][]byte{name}, to: r}
}

func (r *recorder) add(b *bucket, kind byte, fields ...[]byte) {
	if r == nil {
		return
	}
	r.enter(b)
	r.chunk = append(r.chunk, kind)
	for _, field := range fields {
		r.chunk = appendBytes(r.chunk, field)
	}
	if len(r.chunk) >= chunkSize {
		r.end()
	}
}

// enter makes a bucket the one that what follows is about.
func (r *recorder) enter(b *bucket) {
	if r != nil && r.inside != b {
		r.inside = b
		r.chunk = appendEnter(r.chunk, b.path)
	}
}

// end returns all that was collected.
func (r *recorder) end() []Changes {
	if len(r.chunk) > 0 {
		r.chunks, r.chunk, r.inside = append(r.chunks, r.chunk), nil, nil
	}
	return r.chunks
}

func appendEnter(c Changes, path [][]byte) Changes {
	for n, name := range path {
		kind := byte(changeInto)
		if n == 0 {
			kind = changeTop
		}
		c = appendBytes(append(c, kind), name)
	}
	return c
}

func appendBytes(c Changes, b []byte) Changes {
	return append(binary.AppendUvarint(c, uint64(len(b))), b...)
}

// bucket is a bbolt bucket whose changes are recorded.
type bucket struct {
	*bolt.Bucket
	path [][]byte
	to   *recorder
}

func (b *bucket) child(name []byte, found *bolt.Bucket) *bucket {
	return &bucket{Bucket: found, path: append(slices.Clip(b.path), name), to: b.to}
}

// Put is bbolt's, as are the others.
func (b *bucket) Put(key, value []byte) error {
	b.to.add(b, changePut, key, value)
	return b.Bucket.Put(key, value)
}

func (b *bucket) Delete(key []byte) error {
	b.to.add(b, changeRemove, key)
	return b.Bucket.Delete(key)
}

func (b *bucket) DeleteBucket(name []byte) error {
	b.to.add(b, changeDrop, name)
	if b.Bucket.Bucket(name) == nil { // dropped by a commit that failed, and is on disk all the same
		return nil
	}
	return b.Bucket.DeleteBucket(name)
}

func (b *bucket) CreateBucketIfNotExists(name []byte) (*bucket, error) {
	found, err := b.Bucket.CreateBucketIfNotExists(name)
	if err != nil {
		return nil, err
	}
	child := b.child(name, found)
	b.to.enter(child) // also one that is there: a commit that failed may have made it on disk, and not at the standbys
	return child, nil
}

// in returns the bucket of that name, nil if there is none.
func (b *bucket) in(name []byte) *bucket {
	if found := b.Bucket.Bucket(name); found != nil {
		return b.child(name, found)
	}
	return nil
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
		if in.bad || inside == nil && kind != changeTop {
			return errChanges
		}
		var err error
		switch kind {
		case changeTop:
			inside, err = tx.CreateBucketIfNotExists(key)
		case changeInto:
			inside, err = inside.CreateBucketIfNotExists(key)
		case changePut:
			err = inside.Put(key, value)
		case changeRemove:
			err = inside.Delete(key)
		case changeDrop:
			if inside.Bucket(key) != nil {
				err = inside.DeleteBucket(key)
			}
		default:
			return errChanges
		}
		if err != nil {
			return fmt.Errorf("apply a change: %w", err)
		}
		inside.FillPercent = 0.9 // keys come in order, as the leader wrote them
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
