package source

import (
	"maps"
	"slices"
	"strings"
	"unique"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// knownSet is the objects of one watch that exist at its position. Only the process function of the watch changes it.
//
// It is not a cache: for each object it holds the version, and which pipelines have the object, in about 100 bytes and
// the object's name.
type knownSet struct {
	objects map[objectKey]knownObject
	round   uint32 // counts the times that the whole state was read

	// record is set if changes are recorded for the next commit.
	record bool
	// changed are the objects that differ from the last commit; one may occur twice.
	changed []objectKey
	// captured are those that the commit in progress writes.
	captured []objectKey
	commit   uint32 // counts the commits, from 1
}

// objectKey names an object. Many objects share a few namespaces.
type objectKey struct {
	namespace unique.Handle[string]
	name      string
}

// knownObject is what is kept of one object. There may be a million of them.
type knownObject struct {
	version delta.Version
	round   uint32 // in which the object was last seen
	commit  uint32 // for which it is among the changed
	views
	retained *previous // nil for nothing
}

func (o *knownObject) previous() previous {
	if o.retained == nil {
		return nil
	}
	return *o.retained
}

func newKnownSet(record bool) *knownSet {
	return &knownSet{objects: map[objectKey]knownObject{}, record: record, commit: 1}
}

func keyOf(object *delta.Object) objectKey {
	return objectKey{unique.Make(object.Namespace()), object.Name()}
}

func keyOfKnown(object *delta.Known) objectKey {
	return objectKey{unique.Make(object.Namespace), object.Name}
}

// own returns a key that may be kept: the name of an object that was read shares its memory with the other fields, and a
// map keeps the key that was assigned last.
func (k objectKey) own() objectKey { return objectKey{k.namespace, strings.Clone(k.name)} }

func (k *knownSet) find(object *delta.Object) (found knownObject, ok bool) {
	found, ok = k.objects[keyOf(object)]
	return found, ok
}

// put makes object the known version and marks it as seen in this round. If retained is nil, what is retained of the
// same version stays.
func (k *knownSet) put(object *delta.Object, v views, retained previous) {
	key := keyOf(object).own()
	old, existed := k.objects[key]
	next := knownObject{version: object.Version(), round: k.round, commit: old.commit, views: v}
	same := existed && old.version.Equal(&next.version)
	switch {
	case retained != nil:
		next.retained = &retained
	case same:
		next.retained = old.retained
	}
	if same && old.views == v && next.retained == old.retained {
		k.objects[key] = next
		return
	}
	k.change(key, next)
}

func (k *knownSet) remove(key objectKey) {
	delete(k.objects, key)
	if k.record {
		k.changed = append(k.changed, key)
	}
}

// change sets an object, for the next commit to write. The set must own the key.
func (k *knownSet) change(key objectKey, to knownObject) {
	if k.record && to.commit != k.commit {
		to.commit = k.commit
		k.changed = append(k.changed, key)
	}
	k.objects[key] = to
}

// restore adds an object of the last commit. changed makes the next commit write it again.
func (k *knownSet) restore(object *delta.Known, v views, changed bool) {
	key := keyOfKnown(object)
	restored := knownObject{version: object.Version, views: v}
	if object.Previous != nil {
		retained := previous(object.Previous)
		restored.retained = &retained
	}
	if changed {
		k.change(key, restored)
		return
	}
	k.objects[key] = restored
}

// capture returns what changed since the last call. A call of committed or failed follows.
func (k *knownSet) capture() (put, remove []delta.Known) {
	for _, key := range k.changed {
		object, exists := k.objects[key]
		if exists {
			put = append(put, delta.Known{
				Namespace: key.namespace.Value(), Name: key.name, Version: object.version,
				Filtered: uint64(object.filtered), Due: uint64(object.due), Previous: object.previous(),
			})
		} else {
			remove = append(remove, delta.Known{Namespace: key.namespace.Value(), Name: key.name})
		}
	}
	k.changed, k.captured = nil, k.changed
	k.commit++
	return put, remove
}

// committed releases what was captured last: it is on disk.
func (k *knownSet) committed() { k.captured = nil }

// failed makes what was captured last count as changed again: it may not be on disk. While commits fail this is all
// that grows, so no object is in it twice, and no name keeps more than itself in memory. The objects are left alone: the
// process function may be reading them.
func (k *knownSet) failed() {
	seen := make(map[objectKey]struct{}, len(k.captured)+len(k.changed))
	for _, key := range slices.Concat(k.captured, k.changed) {
		if _, again := seen[key]; again {
			continue
		}
		if _, exists := k.objects[key]; !exists {
			key = key.own()
		}
		seen[key] = struct{}{}
	}
	k.captured = nil
	k.changed = slices.AppendSeq(k.changed[:0], maps.Keys(seen))
}

// beginRound starts a reading of the whole state.
func (k *knownSet) beginRound() { k.round++ }

// unseen yields the objects that were not put in this round. They may be removed meanwhile.
func (k *knownSet) unseen(yield func(objectKey, knownObject) bool) {
	for key, object := range k.objects {
		if object.round != k.round && !yield(key, object) {
			return
		}
	}
}

func (k *knownSet) len() int { return len(k.objects) }
