package source

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// knownSet is the objects of one watch that exist at its position. It has one owner, the process function.
//
// It is not a cache: it says that an object exists and which version of it was handed on, in about 100 bytes and the
// object's name.
type knownSet struct {
	objects    map[types.NamespacedName]known
	namespaces map[string]string // interns: many objects share a few names
	round      uint32            // counts the times that the whole state was read

	// keep says that what changes is noted for a commit.
	keep bool
	// changed are the objects that the last commit does not know as they are; one may occur twice.
	changed []types.NamespacedName
	// captured are those that the commit under way writes.
	captured []types.NamespacedName
	commit   uint32 // counts the commits, from 1
}

// known is what is kept of one object. There may be a million of them.
type known struct {
	version delta.Version
	round   uint32    // in which the object was last seen
	commit  uint32    // for which it is among the changed
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
	return &knownSet{objects: map[types.NamespacedName]known{}, namespaces: map[string]string{}, keep: keep, commit: 1}
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
	key := keyOf(object)
	entry := newKnown(object.Version(), missed, kept)
	entry.round, entry.commit = k.round, k.objects[key].commit
	k.change(key, entry)
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
	k.change(key, found)
}

// saw marks a known object as seen in this round.
func (k *knownSet) saw(object *delta.Object) {
	key := keyOf(object)
	found := k.objects[key]
	found.round = k.round
	k.objects[k.own(key)] = found
}

func (k *knownSet) remove(key types.NamespacedName) {
	delete(k.objects, key)
	if k.keep {
		k.changed = append(k.changed, key)
	}
}

// change sets what is known of an object, for the next commit to write.
func (k *knownSet) change(key types.NamespacedName, to known) {
	key = k.own(key)
	if k.keep && to.commit != k.commit {
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

// mark has the next commit write a known object.
func (k *knownSet) mark(key types.NamespacedName) { k.change(key, k.objects[key]) }

// markAll has the next commit write everything.
func (k *knownSet) markAll() {
	for key := range k.objects {
		k.mark(key)
	}
}

// restore puts an object in that the last commit knows.
func (k *knownSet) restore(object delta.Known) {
	key := types.NamespacedName{Namespace: k.intern(object.Namespace), Name: object.Name}
	k.objects[key] = newKnown(object.Version, object.Missed, object.Previous)
}

// capture returns what changed since the last call. A call of committed or failed follows.
func (k *knownSet) capture() (put, remove []delta.Known) {
	for _, key := range k.changed {
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
	k.changed, k.captured = k.captured, k.changed
	k.commit++
	return put, remove
}

// committed says that what was captured last is on disk.
func (k *knownSet) committed() {
	if len(k.captured) > maxIdleChanges {
		k.captured = nil
	}
	clear(k.captured)
	k.captured = k.captured[:0]
}

// failed says that what was captured last may not be on disk: it counts as changed again. While commits fail this is all
// that grows, so no object is in it twice, and no name holds on to more than itself. The objects are left alone: their
// owner may be reading them.
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
