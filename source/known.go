package source

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/delta"
)

// knownSet is the objects of one watch that exist at its position. It has one owner, the process function.
//
// It is not a cache: it says that an object exists and which version of it was handed on, in about 100 bytes and the
// object's name.
type knownSet struct {
	objects    map[types.NamespacedName]known
	namespaces map[string]string // interns: many objects share a few names
	round      uint32            // counts the times that the whole state was read
	// changed are the objects that the last commit does not know as they are; nil if nothing is kept.
	changed map[types.NamespacedName]struct{}
}

// known is what is kept of one object. There may be a million of them.
type known struct {
	version delta.Version
	round   uint32    // in which the object was last seen
	missed  uint64    // the takers whose filters the object did not pass
	kept    *previous // nil for nothing
}

func newKnown(version delta.Version, missed uint64, kept previous) known {
	k := known{version: version, missed: missed}
	if kept != nil {
		k.kept = &kept
	}
	return k
}

func (k *known) previous() previous {
	if k.kept == nil {
		return nil
	}
	return *k.kept
}

func newKnownSet(keep bool) *knownSet {
	k := &knownSet{objects: map[types.NamespacedName]known{}, namespaces: map[string]string{}}
	if keep {
		k.changed = map[types.NamespacedName]struct{}{}
	}
	return k
}

func keyOf(object *delta.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace(), Name: object.Name()}
}

func (k *knownSet) find(object *delta.Object) (known, bool) {
	found, ok := k.objects[keyOf(object)]
	return found, ok
}

// put makes object the known version and marks it as seen.
func (k *knownSet) put(object *delta.Object, missed uint64, kept previous) {
	key := k.intern(keyOf(object))
	entry := newKnown(object.Version(), missed, kept)
	entry.round = k.round
	k.objects[key] = entry
	k.mark(key)
}

// learn notes of a known object whose filters it passes, and what is kept of it.
func (k *knownSet) learn(object *delta.Object, missed uint64, kept previous) {
	key := keyOf(object)
	found := k.objects[key]
	if found.missed == missed && (kept == nil || found.kept != nil) {
		return
	}
	found.missed = missed
	if kept != nil && found.kept == nil {
		found.kept = &kept
	}
	k.objects[key] = found
	k.mark(key)
}

// saw marks a known object as seen in this round.
func (k *knownSet) saw(object *delta.Object) {
	key := keyOf(object)
	found := k.objects[key]
	found.round = k.round
	k.objects[key] = found
}

func (k *knownSet) remove(key types.NamespacedName) {
	delete(k.objects, key)
	k.mark(key)
}

func (k *knownSet) intern(key types.NamespacedName) types.NamespacedName {
	namespace, ok := k.namespaces[key.Namespace]
	if !ok {
		namespace = key.Namespace
		k.namespaces[namespace] = namespace
	}
	key.Namespace = namespace
	return key
}

func (k *knownSet) mark(key types.NamespacedName) {
	if k.changed != nil {
		k.changed[key] = struct{}{}
	}
}

// markAll has the next commit write everything.
func (k *knownSet) markAll() {
	for key := range k.objects {
		k.mark(key)
	}
}

// restore puts an object in that the last commit knows.
func (k *knownSet) restore(object delta.Known) {
	key := k.intern(keyOfKnown(object))
	k.objects[key] = newKnown(object.Version, object.Missed, object.Previous)
}

// capture returns what changed since the last call.
func (k *knownSet) capture() (put, remove []delta.Known) {
	for key := range k.changed {
		object, exists := k.objects[key]
		if exists {
			put = append(put, delta.Known{
				Namespace: key.Namespace, Name: key.Name, Version: object.version,
				Missed: object.missed, Previous: object.previous(),
			})
		} else {
			remove = append(remove, delta.Known{Namespace: key.Namespace, Name: key.Name})
		}
	}
	if len(k.changed) > maxIdleChanges { // a map does not shrink
		k.changed = map[types.NamespacedName]struct{}{}
	}
	clear(k.changed)
	return put, remove
}

// maxIdleChanges is how many changes the space of a commit is kept for.
const maxIdleChanges = 1 << 14

// beginRound starts a reading of the whole state.
func (k *knownSet) beginRound() { k.round++ }

// unseen yields the objects that this round did not see. They may be removed meanwhile.
func (k *knownSet) unseen(yield func(types.NamespacedName, known) bool) {
	for key, object := range k.objects {
		if object.round != k.round && !yield(key, object) {
			return
		}
	}
}

func (k *knownSet) len() int { return len(k.objects) }

func keyOfKnown(object delta.Known) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
}
