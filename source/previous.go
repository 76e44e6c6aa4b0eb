package source

import (
	"context"
	"sync"

	"github.com/klauspost/compress/s2"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// PreviousVersions bounds the memory of what sources retain of their objects: the version that the next change of each is
// compared with. All sources of a program share one. With a state directory a version is in memory until a commit has written it, and is
// read from there when it is needed. A version that does not fit is lost: without a state directory, or while commits fail.
type PreviousVersions struct {
	maxBytes int64

	mu    sync.Mutex // guards what follows, and knownSet.versions
	bytes int64      // of the versions in memory
	// failing is set while commits fail.
	failing bool
	// commitEnded is closed and replaced when a commit ended, well or not.
	commitEnded chan struct{}
}

// retainedSize is about what a version takes in memory.
func retainedSize(packed []byte) int64 { return int64(len(packed)) + 128 }

// NewPreviousVersions makes an empty store with a bound in bytes.
func NewPreviousVersions(maxBytes int64) *PreviousVersions {
	return &PreviousVersions{maxBytes: maxBytes, commitEnded: make(chan struct{})}
}

// pack compresses an object; it returns nil for nil. A Pod takes about half of its JSON (BenchmarkPrevious: zstd saves another quarter and
// costs three times as much).
func pack(object *delta.Object) []byte {
	if object == nil {
		return nil
	}
	packed := s2.Encode(nil, object.JSON())
	return append(make([]byte, 0, len(packed)), packed...) // the encoder's buffer is as large as the worst case
}

// unpack is the reverse of pack. It returns nil for what cannot be read.
func unpack(packed []byte) *delta.Object {
	raw, err := s2.Decode(nil, packed)
	if err != nil {
		return nil
	}
	object, err := delta.NewObject(raw)
	if err != nil {
		return nil
	}
	return object
}

// add retains a version of an object, in place of the last one. It returns false if there is no room.
func (v *PreviousVersions) add(of *knownSet, key objectKey, packed []byte) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(of, key)
	full := func() bool { return v.bytes+retainedSize(packed) > v.maxBytes }
	if of.changed == nil { // no commit makes room: another one is lost
		for other := range of.versions {
			if !full() {
				break
			}
			v.forget(of, other)
		}
	}
	if full() && (of.changed == nil || v.failing) {
		return false
	}
	of.versions[key] = packed
	v.bytes += retainedSize(packed)
	return true
}

// release forgets what is in memory of an object, if there is something.
func (v *PreviousVersions) release(of *knownSet, key objectKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(of, key)
}

// forget is release while mu is held.
func (v *PreviousVersions) forget(of *knownSet, key objectKey) {
	if packed, ok := of.versions[key]; ok {
		delete(of.versions, key)
		v.bytes -= retainedSize(packed)
	}
}

// find returns what is retained of an object; nil if it is not in memory.
func (v *PreviousVersions) find(of *knownSet, key objectKey) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return of.versions[key]
}

// committed is called when a commit has written these.
func (v *PreviousVersions) committed(of *knownSet, written map[objectKey][]byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, packed := range written {
		if now := of.versions[key]; len(now) > 0 && &now[0] == &packed[0] { // else it has changed meanwhile
			v.forget(of, key)
		}
	}
	v.end(false)
}

// failed is called when a commit could not be written. Until one succeeds, versions may be lost, and no watch waits.
func (v *PreviousVersions) failed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.end(true)
}

func (v *PreviousVersions) end(failing bool) {
	v.failing = failing
	close(v.commitEnded)
	v.commitEnded = make(chan struct{})
}

// awaitPrevious waits while more than half of the bound waits for a commit. It returns an error only when ctx ends.
func (w *watcher) awaitPrevious(ctx context.Context) error {
	for v := w.options.Previous; w.store != nil; {
		v.mu.Lock()
		free, ended := v.failing || v.bytes <= v.maxBytes/2, v.commitEnded
		v.mu.Unlock()
		if free {
			break
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// retain returns a function that returns what is to be retained of an object: nothing if the filters of all pipelines that
// need it keep the object back.
func (w *watcher) retain(object *delta.Object) func(views) []byte {
	var packed []byte
	if w.options.Retain != nil {
		packed = pack(w.options.Retain(w.collection.resource, object))
	}
	return func(v views) []byte {
		if w.options.RetainFor&^v.filtered == 0 {
			return nil
		}
		return packed
	}
}

// previous returns the known version of an object, as it was retained; nil if it was not, or cannot be read.
func (w *watcher) previous(key objectKey, known knownObject) *delta.Object {
	if !known.retained {
		return nil
	}
	packed := w.options.Previous.find(w.known(), key)
	if packed == nil && w.store != nil {
		var err error
		if packed, err = w.store.Previous(w.id, key.namespace.Value(), key.name); err != nil {
			w.logger.Warn("cannot read the previous version of an object from the state directory; it counts as unknown",
				"namespace", key.namespace.Value(), "name", key.name, "err", err)
		}
	}
	object := unpack(packed)
	if object == nil {
		return nil
	}
	// The one on disk may be of an earlier change, if no commit has written the last one.
	if version := object.Version(); !version.Equal(&known.version) {
		return nil
	}
	return object
}
