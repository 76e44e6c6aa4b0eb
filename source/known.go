package source

import (
	"math/bits"
	"strings"
	"sync"
	"unique"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// knownSet is the objects of one watch that exist at its position. The process function of the watch changes it, and its
// snapshots, under watcher.mu.
//
// It is not a cache: for each object it holds the version, and which pipelines have the object.
type knownSet struct {
	objects map[unique.Handle[string]]*knownTable // by namespace; none is empty
	count   int
	round   uint32 // counts the times that the whole state was read
	// due counts, for each pipeline, the objects that its snapshot has not reached.
	due [MaxPipelines]int
	// era counts the snapshots that began, and began has, for each pipeline, the era that began with its snapshot. An object that was written in an
	// earlier era is due. So a snapshot makes all objects due, and changes none.
	era   uint32
	began [MaxPipelines]uint32

	// changed are the objects that differ from the last commit; nil if nothing is committed.
	changed map[objectKey]struct{}
	// captured are those that the commit in progress writes. It is guarded by mu, since commits end at any time.
	captured map[objectKey]struct{}
	mu       sync.Mutex

	// versions is what is retained of the objects, as far as it is in memory, which previous bounds. writing is what of it the commit in progress
	// writes.
	previous *PreviousVersions
	versions map[objectKey][]byte // guarded by previous.mu
	writing  map[objectKey][]byte
}

// objectKey names an object. Many objects share a few namespaces.
type objectKey struct {
	namespace unique.Handle[string]
	name      string
}

// knownObject is what is kept of one object. There may be millions of them.
type knownObject struct {
	version delta.Version
	round   uint32 // in which the object was last seen
	era     uint32 // in which it was last written
	views
	// retained is set if something is retained of it: knownSet.versions has it, or else the state directory. Without one it may be lost.
	retained bool
}

// newKnownSet makes an empty set. record is set if commits write the objects.
func newKnownSet(record bool, previous *PreviousVersions) *knownSet {
	k := &knownSet{objects: map[unique.Handle[string]]*knownTable{}, previous: previous, versions: map[objectKey][]byte{}}
	if record {
		k.changed = map[objectKey]struct{}{}
	}
	return k
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

func (k *knownSet) find(key objectKey) (found knownObject, ok bool) {
	if table := k.objects[key.namespace]; table != nil {
		found, ok = k.objectAt(table.locate(key.name))
	}
	return found, ok
}

// objectAt returns what stands at a place in a table.
func (k *knownSet) objectAt(at place) (object knownObject, ok bool) {
	if object, ok = at.object(); ok {
		object.due = k.dueOf(object.due, object.era)
	}
	return object, ok
}

// dueOf returns for which pipelines an object is due that was written in an era with the bits of those for which it was due.
func (k *knownSet) dueOf(bits PipelineSet, era uint32) PipelineSet {
	if era < k.era {
		for n, began := range k.began {
			if era < began {
				bits |= 1 << n
			}
		}
	}
	return bits
}

// table returns the objects of a namespace: at least one is to be put there.
func (k *knownSet) table(namespace unique.Handle[string]) *knownTable {
	table := k.objects[namespace]
	if table == nil {
		table = newKnownTable()
		k.objects[namespace] = table
	}
	return table
}

// store replaces an object, of which due was due for pipelines before, or adds it.
func (k *knownSet) store(table *knownTable, at place, name string, due PipelineSet, next *knownObject) {
	k.countDue(due, next.due)
	before, stored := table.count, *next
	stored.era = k.era
	table.put(at, name, &stored)
	k.count += table.count - before
}

// put makes object the known version and marks it as seen in this round. packed is what is to be retained of it; if that is
// nil, what is retained of the same version stays.
func (k *knownSet) put(object *delta.Object, v views, packed []byte) {
	k.set(keyOf(object).own(), knownObject{version: object.Version(), round: k.round, views: v}, packed)
}

// review gives a known object other views, and records what is to be retained of it, as put does. It does not count as seen.
func (k *knownSet) review(key objectKey, v views, packed []byte) {
	old, _ := k.find(key)
	k.set(key.own(), knownObject{version: old.version, round: old.round, views: v}, packed)
}

func (k *knownSet) set(key objectKey, next knownObject, packed []byte) {
	table := k.table(key.namespace)
	at := table.locate(key.name)
	old, existed := k.objectAt(at)
	same := existed && old.version.Equal(&next.version)
	switch {
	case same && (old.retained || packed == nil):
		next.retained = old.retained
	case packed != nil:
		next.retained = k.previous.add(k, key, packed)
	case old.retained:
		k.previous.release(k, key)
	}
	k.store(table, at, key.name, old.due, &next)
	if !same || old.views != next.views || packed != nil {
		k.change(key)
	}
}

func (k *knownSet) remove(key objectKey) {
	old, existed := k.find(key)
	if existed {
		k.previous.release(k, key)
		k.countDue(old.due, 0)
		table := k.objects[key.namespace]
		table.remove(key.name)
		if k.count--; table.count == 0 {
			delete(k.objects, key.namespace)
		}
	}
	k.change(key.own())
}

// begin makes every object due for a pipeline, and returns the era that begins.
func (k *knownSet) begin(pipeline int) uint32 {
	k.era++
	k.began[pipeline], k.due[pipeline] = k.era, k.count
	return k.era
}

func (k *knownSet) countDue(before, after PipelineSet) {
	for changed := before ^ after; changed != 0; changed &= changed - 1 {
		n := bits.TrailingZeros64(uint64(changed))
		if after.Has(n) {
			k.due[n]++
		} else {
			k.due[n]--
		}
	}
}

// change makes the next commit write an object. The set must own the key.
func (k *knownSet) change(key objectKey) {
	if k.changed != nil {
		k.changed[key] = struct{}{}
	}
}

// restore adds an object of the last commit. changed makes the next commit write it again.
func (k *knownSet) restore(object *delta.Known, v views, changed bool) {
	key := keyOfKnown(object)
	table := k.table(key.namespace)
	at := table.locate(key.name)
	old, _ := k.objectAt(at)
	k.store(table, at, key.name, old.due, &knownObject{version: object.Version, views: v, retained: object.Retained})
	if changed {
		k.change(key)
	}
}

// beginRound starts a reading of the whole state.
func (k *knownSet) beginRound() { k.round++ }

// unseen yields the objects that were not put in this round. They may be removed meanwhile.
func (k *knownSet) unseen(yield func(objectKey, knownObject) bool) {
	for key, object := range k.all {
		if object.round != k.round && !yield(key, object) {
			return
		}
	}
}

// all yields the objects. They may be changed and removed meanwhile, and none may be added.
func (k *knownSet) all(yield func(objectKey, knownObject) bool) {
	for namespace, table := range k.objects {
		for name, object := range table.all {
			object.due = k.dueOf(object.due, object.era)
			if !yield(objectKey{namespace, name}, object) {
				return
			}
		}
	}
}

func (k *knownSet) len() int { return k.count }
