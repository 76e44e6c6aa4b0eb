package pipeline

import (
	"container/list"
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
	// unloadable are the items of failing objects that leave memory once a commit has written them.
	unloadable map[*item]struct{}
	arrivals   list.List // of *item: those that came from a source, in order of arrival
	loaded     list.List // of *item: those that came from the log, in order for each object
}

func newBacklog(enqueue func(*item)) *backlog {
	return &backlog{enqueue: enqueue, unloadable: map[*item]struct{}{}}
}

// add appends an item to a list and to its object.
func (b *backlog) add(i *item, to *list.List) {
	i.arrival = to.PushBack(i)
	b.enqueue(i)
}

// remove marks an item as settled, and takes it out of the lists.
func (b *backlog) remove(i *item) {
	i.settled = true
	b.arrivals.Remove(i.arrival) // does nothing if it is in the other
	b.loaded.Remove(i.arrival)
	delete(b.unloadable, i)
}
