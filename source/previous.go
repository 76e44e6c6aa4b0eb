package source

import (
	"container/list"
	"context"
	"sync"

	"github.com/klauspost/compress/s2"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// PreviousVersions bounds the memory of what sources retain of their objects: the version that the next change of each is
// compared with. All sources of a program share one. Beyond the bound, the versions that were retained first leave memory,
// and are read from the state directory when they are needed. Without a state directory they are unknown then.
type PreviousVersions struct {
	maxBytes int64

	mu       sync.Mutex // guards what follows, each [retained], and knownSet.versions
	inMemory list.List  // of *retained, in the order in which they were added
	bytes    int64      // of those in memory
	// unstored are the bytes of those that no commit has written.
	unstored int64
	// failing is set while commits fail.
	failing bool
	// ended is closed and replaced when a commit ended, well or not.
	ended chan struct{}
}

// retained is what is retained of one object.
type retained struct {
	// packed is the object's JSON, compressed, as long as it is in memory. A known set of Pods takes about half of their JSON
	// (BenchmarkPrevious: zstd saves another quarter and costs three times as much).
	packed []byte
	// unstored is set until a commit has written it. It is lost if it leaves memory before.
	unstored bool
	place    *list.Element // nil if it is not in memory
	// of and key are where it is found: not any more once the state directory alone has it.
	of  *knownSet
	key objectKey
}

// retainedOverhead is about what a version in memory takes beside its JSON.
const retainedOverhead = 224

func (r *retained) size() int64 { return int64(len(r.packed)) + retainedOverhead }

// NewPreviousVersions makes an empty store with a bound in bytes.
func NewPreviousVersions(maxBytes int64) *PreviousVersions {
	return &PreviousVersions{maxBytes: maxBytes, ended: make(chan struct{})}
}

// pack compresses an object; it returns nil for nil.
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

// add retains a version of an object, in place of the last one.
func (v *PreviousVersions) add(of *knownSet, key objectKey, packed []byte) {
	unstored := of.changed != nil // a commit will write it
	r := &retained{packed: packed, unstored: unstored, of: of, key: key}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(of.versions[key])
	of.versions[key] = r
	r.place = v.inMemory.PushBack(r)
	v.bytes += r.size()
	if unstored {
		v.unstored += r.size()
	}
	v.evict()
}

// release forgets what is retained of an object, if there is something.
func (v *PreviousVersions) release(of *knownSet, key objectKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(of.versions[key])
}

// find returns what is retained of an object, for which retained is set: packed is nil if it is not in memory. stored reports
// whether the state directory has it.
func (v *PreviousVersions) find(of *knownSet, key objectKey) (r *retained, packed []byte, stored bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r = of.versions[key]; r == nil {
		return nil, nil, true
	}
	return r, r.packed, !r.unstored
}

// committed is called when a commit has written these.
func (v *PreviousVersions) committed(written []*retained) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range written {
		if r.packed != nil && r.unstored {
			v.unstored -= r.size()
		}
		r.unstored = false
		if r.packed == nil { // it left memory meanwhile
			v.forget(r)
		}
	}
	v.failing = false
	v.evict()
	v.announceEnd()
}

// failed is called when a commit could not be written. Until one succeeds, versions may be lost, and no watch waits.
func (v *PreviousVersions) failed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failing = true
	v.evict()
	v.announceEnd()
}

func (v *PreviousVersions) announceEnd() {
	close(v.ended)
	v.ended = make(chan struct{})
}

// await waits while more than half of the bound waits for a commit. It returns an error only when ctx ends.
func (v *PreviousVersions) await(ctx context.Context) error {
	for {
		v.mu.Lock()
		free, ended := v.failing || v.unstored <= v.maxBytes/2, v.ended
		v.mu.Unlock()
		if free {
			return nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// evict drops versions until the bound is kept. One that no commit has written stays while commits succeed; all behind it are
// younger, so that they are not written either.
func (v *PreviousVersions) evict() {
	for v.bytes > v.maxBytes {
		first := v.inMemory.Front()
		if first == nil || first.Value.(*retained).unstored && !v.failing {
			return
		}
		if r := first.Value.(*retained); r.unstored {
			v.drop(r) // it is known to be lost
		} else {
			v.forget(r)
		}
	}
}

// forget drops a version that is not to be found any more; nil is none.
func (v *PreviousVersions) forget(r *retained) {
	if r == nil {
		return
	}
	v.drop(r)
	if r.of.versions[r.key] == r {
		delete(r.of.versions, r.key)
	}
}

func (v *PreviousVersions) drop(r *retained) {
	if r.place == nil {
		return
	}
	v.inMemory.Remove(r.place)
	v.bytes -= r.size()
	if r.unstored {
		v.unstored -= r.size()
	}
	r.packed, r.place = nil, nil
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
	_, packed, stored := w.options.Previous.find(w.known(), key)
	if packed == nil && stored && w.store != nil {
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
	// An older version of this program leaves the retained versions as they are when their objects change.
	if version := object.Version(); !version.Equal(&known.version) {
		return nil
	}
	return object
}
