package enrich

import (
	"container/list"
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// store keeps the metadata of all kinds within maxBytes: the least recently used goes first. The cache's mutex guards it.
type store struct {
	maxBytes   int64
	deletedFor time.Duration

	bytes   int64
	used    list.List // of *entry: looked up or new last at the front
	deleted list.List // of *entry: deleted first at the front
}

type entry struct {
	kind     *kind
	name     cache.ObjectName
	uid      types.UID
	metadata json.RawMessage // as Lookup returns it
	list     int             // of the kind's lists, that during which it was put

	used      *list.Element
	deleted   *list.Element // nil while the object exists
	deletedAt time.Time
}

// overhead is about what an entry takes beside its strings: itself, two list elements, its place in the map, and what
// the allocator rounds up. Of 100,000 Pods it was 275 bytes each.
const overhead = 300

func (e *entry) size() int64 {
	return int64(len(e.metadata)+len(e.name.Namespace)+len(e.name.Name)+len(e.uid)) + overhead
}

// lookup returns the metadata of the object of an Event in the namespace.
func (s *store) lookup(k *kind, namespace string, ref delta.Reference) (json.RawMessage, bool) {
	name := cache.NewObjectName(ref.Namespace, ref.Name)
	if k.clusterScoped {
		name.Namespace, ref.Namespace = "", metav1.NamespaceDefault
	}
	e := k.objects[name]
	// The kubelet writes the name of its Node where the uid belongs.
	kubelet := k.GroupKind == schema.GroupKind{Kind: "Node"} && string(ref.UID) == ref.Name
	if e == nil || namespace != ref.Namespace || ref.UID != e.uid && !kubelet {
		return nil, false
	}
	s.used.MoveToFront(e.used)
	return e.metadata, true
}

// put keeps an object as it is now. A new one counts as used, since the next Events are most likely about it; a change
// does not.
func (s *store) put(k *kind, name cache.ObjectName, uid types.UID, metadata json.RawMessage, now time.Time) {
	e := k.objects[name]
	if e == nil {
		e = &entry{kind: k, name: name}
		e.used = s.used.PushFront(e)
		k.objects[name] = e
	} else {
		s.bytes -= e.size()
		s.undelete(e)
	}
	e.uid, e.metadata, e.list = uid, metadata, k.lists
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
func (s *store) delete(k *kind, name cache.ObjectName, uid types.UID, now time.Time) {
	if e := k.objects[name]; e != nil && e.uid == uid && e.deleted == nil {
		e.deletedAt = now
		e.deleted = s.deleted.PushBack(e)
	}
	s.expire(now)
}

// sweep deletes what the latest complete list did not hold.
func (s *store) sweep(k *kind, now time.Time) {
	for name, e := range k.objects {
		if e.list != k.lists {
			s.delete(k, name, e.uid, now)
		}
	}
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
	delete(e.kind.objects, e.name)
	s.bytes -= e.size()
}

func (s *store) undelete(e *entry) {
	if e.deleted != nil {
		s.deleted.Remove(e.deleted)
		e.deleted = nil
	}
}
