package enrich

import (
	"container/list"
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// store keeps metadata within maxBytes: the least recently used goes first. The cache's mutex guards it.
type store struct {
	maxBytes   int64
	deletedFor time.Duration

	bytes   int64
	entries map[key]*entry
	used    list.List // of *entry: looked up or new last at the front
	deleted list.List // of *entry: deleted first at the front
}

// key identifies an object, in whatever version. The namespace of a cluster-scoped one is empty.
type key struct {
	kind            schema.GroupKind
	namespace, name string
}

type entry struct {
	key
	uid      types.UID
	metadata json.RawMessage // as Lookup returns it

	used      *list.Element
	deleted   *list.Element // nil while the object exists
	deletedAt time.Time
}

// overhead is about what an entry takes beside its strings: itself, two list elements, its place in the map, and what
// the allocator rounds up. Of 100,000 Pods it was 322 bytes each.
const overhead = 350

func (e *entry) size() int64 {
	return int64(len(e.metadata)+len(e.namespace)+len(e.name)+len(e.uid)) + overhead
}

func newStore(maxBytes int64, deletedFor time.Duration) *store {
	return &store{maxBytes: maxBytes, deletedFor: deletedFor, entries: map[key]*entry{}}
}

// lookup returns the metadata of the object of an Event in the namespace.
func (s *store) lookup(namespace string, ref delta.Reference) (json.RawMessage, bool) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || ref.UID == "" {
		return nil, false
	}
	of := key{schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, ref.Namespace, ref.Name}
	e, belongs := s.entries[of], ref.Namespace
	if e == nil || of.namespace == "" { // a cluster-scoped object, which some Events name with a namespace
		of.namespace, belongs = "", metav1.NamespaceDefault
		e = s.entries[of]
	}
	// The kubelet writes the name of its Node where the uid belongs.
	kubelet := of.kind == schema.GroupKind{Kind: "Node"} && string(ref.UID) == ref.Name
	if e == nil || namespace != belongs || ref.UID != e.uid && !kubelet {
		return nil, false
	}
	s.used.MoveToFront(e.used)
	return e.metadata, true
}

// put keeps an object as it is now. A new one counts as used, since the next Events are most likely about it; a change
// does not.
func (s *store) put(of key, uid types.UID, metadata json.RawMessage, now time.Time) {
	e := s.entries[of]
	if e == nil {
		e = &entry{key: of}
		e.used = s.used.PushFront(e)
		s.entries[of] = e
	} else {
		s.bytes -= e.size()
		s.undelete(e)
	}
	e.uid, e.metadata = uid, metadata
	s.bytes += e.size()
	if e.size() > s.maxBytes { // else it would evict all others, and then itself
		s.remove(e)
	}
	s.expire(now)
	for s.bytes > s.maxBytes {
		s.remove(s.used.Back().Value.(*entry))
	}
}

// delete keeps a deleted object for deletedFor.
func (s *store) delete(of key, uid types.UID, now time.Time) {
	if e := s.entries[of]; e != nil && e.uid == uid && e.deleted == nil {
		e.deletedAt = now
		e.deleted = s.deleted.PushBack(e)
	}
	s.expire(now)
}

// expire removes the objects that were deleted deletedFor ago.
func (s *store) expire(now time.Time) {
	for s.deleted.Len() > 0 && now.Sub(s.deleted.Front().Value.(*entry).deletedAt) >= s.deletedFor {
		s.remove(s.deleted.Front().Value.(*entry))
	}
}

func (s *store) remove(e *entry) {
	s.undelete(e)
	s.used.Remove(e.used)
	delete(s.entries, e.key)
	s.bytes -= e.size()
}

func (s *store) undelete(e *entry) {
	if e.deleted != nil {
		s.deleted.Remove(e.deleted)
		e.deleted = nil
	}
}
