package pipeline

import (
	"cmp"
	"container/list"
	"slices"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// noticeSize is what a gap or a mark counts towards the bound of the backlog.
const noticeSize = 1024

// gapName and markName are before the id of the watch or the snapshot in the reference of gaps and marks: names that no object has.
const (
	gapName  = "/gap/"
	markName = "/snapshot/"
)

// noticeNamespace is the flow of gaps and marks: a name that no namespace has.
const noticeNamespace = "/notice"

// backlog holds what is waiting and not behind a cursor. The pipeline's mutex guards it.
type backlog struct {
	// enqueue hands an item to the scheduler.
	enqueue func(*item)
	// held is what waits for the notices of a watch, by watch; the entry exists while such a notice does.
	held map[string]*heldBack
	// heldOf are the items of an object that wait for notices, in order: of its watch, and, if the configuration was edited, of those that
	// it had before.
	heldOf map[delta.Ref][]*item
	// unloadable are the items of failing objects that leave memory once a commit has written them.
	unloadable map[*item]struct{}
	arrivals   list.List // of *item: those that came from a source, in order of arrival
	loaded     list.List // of *item: those that came from the log, in order for each object
}

func newBacklog(enqueue func(*item)) *backlog {
	return &backlog{enqueue: enqueue, held: map[string]*heldBack{}, heldOf: map[delta.Ref][]*item{}, unloadable: map[*item]struct{}{}}
}

// heldBack are the notices of a watch that hold back what follows, in order. The first is enqueued.
type heldBack struct{ notices []*item }

// blocks reports whether an item still waits for a notice of its watch.
func (h *heldBack) blocks(i *item) bool { return h != nil && h.notices[0].seq <= i.seq }

// behind returns the notice that an item waits for which h blocks: the last one before it.
func (h *heldBack) behind(i *item) *item {
	n, _ := slices.BinarySearchFunc(h.notices, i.seq, func(notice *item, seq uint64) int { return cmp.Compare(notice.seq, seq+1) })
	return h.notices[n-1]
}

// add appends an item to a list and to its object, or holds it back.
func (b *backlog) add(i *item, to *list.List) {
	i.arrival = to.PushBack(i)
	watch := b.held[i.watch]
	if i.notice() {
		if watch == nil {
			b.held[i.watch] = &heldBack{notices: []*item{i}}
			b.enqueue(i)
		} else {
			watch.notices = append(watch.notices, i)
		}
		return
	}
	items := b.heldOf[i.Ref]
	if !watch.blocks(i) && items == nil {
		b.enqueue(i)
		return
	}
	if items == nil {
		notice := watch.behind(i)
		notice.holds = append(notice.holds, i.Ref)
	}
	b.heldOf[i.Ref] = append(items, i)
}

// remove marks an item as settled, and takes it out of the lists.
func (b *backlog) remove(i *item) {
	i.settled = true
	b.arrivals.Remove(i.arrival) // does nothing if it is in the other
	b.loaded.Remove(i.arrival)
	delete(b.unloadable, i)
	if i.notice() {
		b.releaseHeld(i)
	}
}

// releaseHeld enqueues what waits for a notice, and the next notice of the watch.
func (b *backlog) releaseHeld(i *item) {
	if i.released {
		return
	}
	i.released = true
	watch := b.held[i.watch]
	takeFirst(&watch.notices)
	if len(watch.notices) == 0 {
		delete(b.held, i.watch)
	}
	holds := i.holds
	i.holds = nil
	for _, ref := range holds {
		b.releaseObject(ref)
	}
	if len(watch.notices) > 0 {
		b.enqueue(watch.notices[0])
	}
}

// releaseObject enqueues the held items of an object, up to one that waits for another notice.
func (b *backlog) releaseObject(ref delta.Ref) {
	items := b.heldOf[ref]
	for n, i := range items {
		if watch := b.held[i.watch]; watch.blocks(i) {
			notice := watch.behind(i)
			notice.holds = append(notice.holds, ref)
			b.heldOf[ref] = items[n:]
			return
		}
		b.enqueue(i)
	}
	delete(b.heldOf, ref)
}

// takeFirst takes the first element out of a slice.
func takeFirst[T any](s *[]T) T {
	first := (*s)[0]
	var none T
	(*s)[0] = none
	*s = (*s)[1:]
	return first
}
