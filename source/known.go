package source

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// knownSet is the objects of one watch that exist at its position. Only the process function of the watch changes it.
//
// It is not a cache: for each object it holds the version, and which pipelines have the object, in about 100 bytes and
// the object's name.
type knownSet struct {
	objects    map[types.NamespacedName]knownObject
	namespaces map[string]string // interns: many objects share a few names
	round      uint32            // counts the times that the whole state was read

	// record is set if changes are recorded for the next commit.
	record bool
	// changed are the objects that differ from the last commit; one may occur twice.
	changed []types.NamespacedName
	// captured are those that the commit in progress writes.
	captured []types.NamespacedName
	commit   uint32 // counts the commits, from 1
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
	return &knownSet{objects: map[types.NamespacedName]knownObject{}, namespaces: map[string]string{}, record: record, commit: 1}
}

func keyOf(object *delta.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace(), Name: object.Name()}
}

func (k *knownSet) find(object *delta.Object) (found knownObject, ok bool) {
	found, ok = k.objects[keyOf(object)]
	return found, ok
}

// put makes object the known version and marks it as seen in this round. If retained is nil, what is retained of the
// same version stays.
func (k *knownSet) put(object *delta.Object, v views, retained previous) {
	key := k.own(keyOf(object))
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

func (k *knownSet) remove(key types.NamespacedName) {
	delete(k.objects, key)
	if k.record {
		k.changed = append(k.changed, key)
	}
}

// change sets an object, for the next commit to write. The set must own the key.
func (k *knownSet) change(key types.NamespacedName, to knownObject) {
	if k.record && to.commit != k.commit {
		to.commit = k.commit
		k.changed = append(k.changed, key)
	}
	k.objects[key] = to
}

// own returns a key that may be kept: the name of an object that was read shares its memory with the other fields, and a
// map keeps the key that was assigned last.
func (k *knownSet) own(key types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: k.intern(key.Namespace), Name: strings.Clone(key.Name)}
}

func (k *knownSet) intern(namespace string) string {
	interned, ok := k.namespaces[namespace]
	if !ok {
		if len(k.namespaces) > len(k.objects)+maxIdleNames { // most of them are gone
			clear(k.namespaces)
		}
		interned = strings.Clone(namespace)
		k.namespaces[interned] = interned
	}
	return interned
}

// restore adds an object of the last commit. changed makes the next commit write it again.
func (k *knownSet) restore(object *delta.Known, v views, changed bool) {
	key := types.NamespacedName{Namespace: k.intern(object.Namespace), Name: object.Name}
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
				Namespace: key.Namespace, Name: key.Name, Version: object.version,
				Filtered: uint64(object.filtered), Due: uint64(object.due), Previous: object.previous(),
			})
		} else {
			remove = append(remove, delta.Known{Namespace: key.Namespace, Name: key.Name})
		}
	}
	k.changed, k.captured = k.captured, k.changed
	k.commit++
	return put, remove
}

// committed releases what was captured last: it is on disk.
func (k *knownSet) committed() {
	if len(k.captured) > maxIdleChanges {
		k.captured = nil
	}
	clear(k.captured)
	k.captured = k.captured[:0]
}

// failed makes what was captured last count as changed again: it may not be on disk. While commits fail this is all
// that grows, so no object is in it twice, and no name keeps more than itself in memory. The objects are left alone: the
// process function may be reading them.
func (k *knownSet) failed() {
	seen := make(map[types.NamespacedName]struct{}, len(k.captured)+len(k.changed))
	for _, key := range slices.Concat(k.captured, k.changed) {
		if _, again := seen[key]; again {
			continue
		}
		if _, exists := k.objects[key]; !exists {
			key = types.NamespacedName{Namespace: strings.Clone(key.Namespace), Name: strings.Clone(key.Name)}
		}
		seen[key] = struct{}{}
	}
	k.captured = nil
	k.changed = slices.AppendSeq(k.changed[:0], maps.Keys(seen))
}

// maxIdleChanges is how many changes the space of a commit is kept for.
const maxIdleChanges = 1 << 14

// maxIdleNames is how many names of namespaces are kept that may be gone.
const maxIdleNames = 1 << 10

// beginRound starts a reading of the whole state.
func (k *knownSet) beginRound() { k.round++ }

// unseen yields the objects that were not put in this round. They may be removed meanwhile.
func (k *knownSet) unseen(yield func(types.NamespacedName, knownObject) bool) {
	for key, object := range k.objects {
		if object.round != k.round && !yield(key, object) {
			return
		}
	}
}

func (k *knownSet) len() int { return len(k.objects) }

func keyOfKnown(object *delta.Known) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
}
