package enrich

import (
	"container/list"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// store keeps the metadata of all kinds within one bound. The cache's lock guards it.
type store struct {
	maxBytes   int64
	deletedFor time.Duration

	bytes int64
	used  list.List // of *entry; what was not asked for, or new, the longest is at the back
	dying list.List // of *entry; the deleted ones, in the order of their deletion
}

// place is where an object is among those of its kind.
type place struct{ namespace, name string }

type entry struct {
	kind  *kind
	place place
	uid   types.UID
	// metadata is what Lookup returns.
	metadata json.RawMessage
	round    int

	used      *list.Element
	dying     *list.Element // nil while the object exists
	deletedAt time.Time
}

// overhead is about what an entry takes beside its texts: itself, two list elements, its place in the map, and what the
// allocator rounds up. Of 100,000 Pods it was 275 bytes each.
const overhead = 300

func (e *entry) size() int64 {
	return int64(len(e.metadata)+len(e.place.namespace)+len(e.place.name)+len(e.uid)) + overhead
}

func (s *store) lookup(k *kind, ref delta.Reference) (json.RawMessage, bool) {
	at := place{ref.Namespace, ref.Name}
	if k.clusterScoped {
		at.namespace = ""
	}
	e := k.objects[at]
	if e == nil {
		return nil, false
	}
	// The kubelet puts the name of a Node where its uid belongs.
	if known := ref.UID != "" && string(ref.UID) != ref.Name; known && ref.UID != e.uid {
		return nil, false
	}
	s.used.MoveToFront(e.used)
	return e.metadata, true
}

// put keeps an object as it is now. A new one counts as used: the next Events are most likely about it.
func (s *store) put(k *kind, at place, uid types.UID, metadata json.RawMessage, now time.Time) {
	e := k.objects[at]
	if e == nil {
		e = &entry{kind: k, place: at}
		e.used = s.used.PushFront(e)
		k.objects[at] = e
	} else {
		s.bytes -= e.size()
		s.revive(e)
	}
	e.uid, e.metadata, e.round = uid, metadata, k.round
	s.bytes += e.size()
	if e.size() > s.maxBytes { // alone it would put everything else out
		s.remove(e)
	}
	s.expire(now)
	for s.bytes > s.maxBytes {
		s.remove(s.used.Back().Value.(*entry))
	}
}

// deleted notes that an object is gone. It is kept for a while.
func (s *store) deleted(k *kind, at place, uid types.UID, now time.Time) {
	if e := k.objects[at]; e != nil && e.uid == uid && e.dying == nil {
		e.deletedAt = now
		e.dying = s.dying.PushBack(e)
	}
	s.expire(now)
}

// sweep notes as deleted what the last complete list did not hold.
func (s *store) sweep(k *kind, now time.Time) {
	for at, e := range k.objects {
		if e.round != k.round {
			s.deleted(k, at, e.uid, now)
		}
	}
}

// clear forgets a kind's objects.
func (s *store) clear(k *kind) {
	for _, e := range k.objects {
		s.remove(e)
	}
}

// expire forgets the objects that were deleted long ago.
func (s *store) expire(now time.Time) {
	for first := s.dying.Front(); first != nil; first = s.dying.Front() {
		e := first.Value.(*entry)
		if now.Sub(e.deletedAt) < s.deletedFor {
			return
		}
		s.remove(e)
	}
}

func (s *store) revive(e *entry) {
	if e.dying != nil {
		s.dying.Remove(e.dying)
		e.dying = nil
	}
}

func (s *store) remove(e *entry) {
	s.revive(e)
	s.used.Remove(e.used)
	delete(e.kind.objects, e.place)
	s.bytes -= e.size()
}
