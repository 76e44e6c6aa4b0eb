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

// What a change does. Each is a byte, followed by byte strings, each with its length before it.
const (
	changeEnter  = 'B' // the number of names, the names: the bucket that what follows is about
	changeMake   = 'M' // makes that bucket, if it does not exist
	changePut    = 'P' // key, value
	changeRemove = 'R' // key
	changeDrop   = 'D' // the name of a bucket in it
)

// Changes are collected in chunks, each twice as large as the one before, between these sizes: none is ever copied to grow. What
// takes more than the largest has a chunk of its own.
const (
	smallestChunk = 4 << 10
	largestChunk  = 1 << 20
)

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
	need := 64 // for the lengths, and the names of the bucket
	for _, field := range fields {
		need += len(field)
	}
	if len(r.chunk)+need > cap(r.chunk) {
		size := max(need, min(2*cap(r.chunk), largestChunk), smallestChunk)
		r.end()
		r.chunk = make(Changes, 0, size)
	}
	if r.inside != b {
		r.inside = b
		r.chunk = appendEnter(r.chunk, b.path)
	}
	r.chunk = append(r.chunk, kind)
	for _, field := range fields {
		r.chunk = appendBytes(r.chunk, field)
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
	c = binary.AppendUvarint(append(c, changeEnter), uint64(len(path)))
	for _, name := range path {
		c = appendBytes(c, name)
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
	found := b.Bucket.Bucket(name)
	if found == nil {
		var err error
		if found, err = b.CreateBucket(name); err != nil {
			return nil, err
		}
		made := b.child(name, found)
		b.to.add(made, changeMake)
		return made, nil
	}
	return b.child(name, found), nil
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
	var path [][]byte
	var inside *bolt.Bucket // nil until it is needed, or if it does not exist
	enter := func(create bool) error {
		if len(path) == 0 {
			return errChanges
		}
		if inside != nil {
			return nil
		}
		b, err := tx.Cursor().Bucket(), error(nil) // the root
		for _, name := range path {
			if b == nil || err != nil {
				break
			}
			if found := b.Bucket(name); found != nil || !create {
				b = found
				continue
			}
			b, err = b.CreateBucket(name)
		}
		if b != nil {
			b.FillPercent = 0.9 // keys come in order, as the leader wrote them
		}
		inside = b
		return err
	}
	in := reader{rest: c}
	for len(in.rest) > 0 && !in.bad {
		kind := in.byte()
		var err error
		switch kind {
		case changeEnter:
			n := in.uvarint()
			if n == 0 || n > 8 {
				return errChanges
			}
			path, inside = path[:0:0], nil
			for range n {
				path = append(path, in.bytes())
			}
		case changeMake:
			err = enter(true)
		case changePut:
			key, value := in.bytes(), in.bytes()
			if err = enter(true); err == nil && inside != nil && !in.bad {
				err = inside.Put(key, value)
			}
		case changeRemove:
			key := in.bytes()
			if err = enter(false); err == nil && inside != nil && !in.bad {
				err = inside.Delete(key)
			}
		case changeDrop:
			name := in.bytes()
			if err = enter(false); err == nil && inside != nil && !in.bad && inside.Bucket(name) != nil {
				err = inside.DeleteBucket(name)
			}
		default:
			return errChanges
		}
		if err != nil {
			return fmt.Errorf("apply a change: %w", err)
		}
	}
	if in.bad {
		return errChanges
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
