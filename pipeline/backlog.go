package pipeline

import (
	"cmp"
	"container/list"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// noticeSize is what a gap or a mark counts towards the bound of the backlog.
const noticeSize = 1024

// gapName and markName are before the id of the watch or the snapshot in the queue's reference to gaps and marks: names that no object has.
const (
	gapName  = "/gap/"
	markName = "/snapshot/"
)

// objectQueue is the pending items of one object, or of the gaps of one watch, or of the marks of one snapshot. It is in the workqueue, in a
// batch, or in its backoff; never in two of them, so that no two batches hold it.
type objectQueue struct {
	ref   delta.Ref
	flow  *flow
	items []*item
	// items, unloaded and tail are the object's records, in this order; those that are unloaded are in the log only (unload.go).
	unloaded []unloaded
	tail     []*item
	// size is what items and tail count towards the bound of the backlog.
	size int64
	// kept is what the object counts towards the bound since its records left memory.
	kept int64
	// attempts and failed are those of the first unloaded record, if it has failed.
	attempts int
	failed   time.Time
	// back is set from when records are read back until one is tried; backSize is theirs.
	back     bool
	backSize int64
	// inFlight is set while a batch holds it.
	inFlight bool
	// apart is set if a call failed as a whole with this object in it while others succeeded: until it gets through, its namespace is
	// suspect. If the call had objects of this namespace only, it is isolated: sent alone.
	apart, isolated bool
	// failedAlone is set if the last attempt failed in a call without other records.
	failedAlone bool
	// failing is set if the last attempt failed.
	failing bool
}

// backlog holds what is waiting. It is guarded by the pipeline's mutex, except for the queue.
type backlog struct {
	queue workqueue.TypedRateLimitingInterface[*objectQueue]
	// first was taken from the queue and did not fit into the batch. It begins the next one: at the end of the queue it might
	// never fit.
	first *objectQueue
	// again were taken from the queue and not sent, in order. They go before the queue.
	again   []*objectQueue
	limiter workqueue.TypedRateLimiter[*objectQueue]
	objects map[delta.Ref]*objectQueue
	// held is what waits for the notices of a watch, by watch; the entry exists while such a notice does.
	held map[string]*heldBack
	// heldOf are the items of an object that wait for notices, in order: of its watch, and, if the configuration was edited, of those that
	// it had before.
	heldOf map[delta.Ref][]*item
	// failing are the objects whose last attempt failed. stuck is the size of their items in memory.
	failing map[*objectQueue]struct{}
	stuck   int64
	// unloadable are the objects of which something may leave memory once it is in the log.
	unloadable map[*objectQueue]struct{}
	// suspects counts the objects that make a namespace suspect, by namespace.
	suspects map[string]int
	// refused has until when namespaces are suspect because a record was to become a dead letter, by namespace.
	refused map[string]time.Time
	// turns are of probes. unprobed is set if there may be ready objects of a namespace that had none yet.
	turns    turns
	unprobed bool
	arrivals list.List // of *item: in memory, in order of arrival, but for those in loaded
	loaded   list.List // of *item: those that came from the log, in order for each object
}

// newBacklog makes an empty backlog that calls ready, with how many there are, whenever an object enters the queue.
func newBacklog(name string, retry Retry, ready func(queued int)) *backlog {
	// The default limiter's overall bucket of 10/s would make a thousand failed objects wait for 90 s.
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[*objectQueue](retry.Initial, retry.Max)
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[*objectQueue]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[*objectQueue]{
			Name: name,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[*objectQueue]{
				Name:  name,
				Queue: &readyQueue{workqueue.DefaultQueue[*objectQueue](), ready},
			}),
		}),
	})
	return &backlog{
		queue: queue, limiter: limiter,
		objects: map[delta.Ref]*objectQueue{}, held: map[string]*heldBack{}, heldOf: map[delta.Ref][]*item{}, failing: map[*objectQueue]struct{}{},
		unloadable: map[*objectQueue]struct{}{}, suspects: map[string]int{}, refused: map[string]time.Time{}, turns: newTurns(),
	}
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
	items := b.heldOf[i.ref]
	if !watch.blocks(i) && items == nil {
		b.enqueue(i)
		return
	}
	if items == nil {
		notice := watch.behind(i)
		notice.holds = append(notice.holds, i.ref)
	}
	b.heldOf[i.ref] = append(items, i)
}

func (b *backlog) enqueue(i *item) {
	o, ok := b.objects[i.ref]
	if !ok {
		o = &objectQueue{ref: i.ref, flow: i.flow}
		b.objects[i.ref] = o
	}
	if len(o.unloaded) > 0 {
		o.tail = append(o.tail, i)
		b.note(o)
	} else {
		o.items = append(o.items, i)
	}
	b.resize(o, i.size)
	if !ok { // else whatever holds the object, a batch or its backoff, puts it back into the queue
		b.queue.Add(o)
		b.unprobed = b.unprobed || b.turns.of(i.namespace()) <= 0
	}
}

// resize notes that an object has more or fewer bytes in memory.
func (b *backlog) resize(o *objectQueue, by int64) {
	o.size += by
	if _, failing := b.failing[o]; failing {
		b.stuck += by
		b.note(o)
	}
}

// note keeps unloadable up to date.
func (b *backlog) note(o *objectQueue) {
	_, failing := b.failing[o]
	if len(o.tail) > 0 || failing && len(o.items) > 0 && !o.items[0].notice() {
		b.unloadable[o] = struct{}{}
	} else {
		delete(b.unloadable, o)
	}
}

// remove marks an item as settled, and takes it out of the lists. It stays in the items of its object until done.
func (b *backlog) remove(o *objectQueue, i *item) {
	i.settled = true
	b.resize(o, -i.size)
	b.forget(i)
	if i.notice() {
		b.releaseHeld(i)
	}
}

// forget takes an item that leaves memory out of the lists.
func (b *backlog) forget(i *item) {
	b.arrivals.Remove(i.arrival) // does nothing if it is in the other
	b.loaded.Remove(i.arrival)
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

// done gives an object back that a batch held: for good if it has nothing left, to the queue at once, or after its
// backoff and at least the delay if its first item failed.
func (b *backlog) done(o *objectQueue, failed bool, delay time.Duration) {
	o.items = slices.DeleteFunc(o.items, func(i *item) bool { return i.settled })
	o.inFlight = false
	_, failing := b.failing[o]
	if failing && !failed {
		delete(b.failing, o)
		b.stuck -= o.size
		o.flow.failing--
		b.note(o)
		b.limiter.Forget(o)
	}
	switch {
	case len(o.items)+len(o.unloaded) == 0:
		delete(b.objects, o.ref)
	case failed:
		if !failing {
			b.failing[o] = struct{}{}
			b.stuck += o.size
			o.flow.failing++
		}
		b.note(o)
		wait := b.limiter.When(o)
		if !o.isolated { // else those that failed in one batch meet again in the next, where one may hold up the others
			wait -= time.Duration(0.2 * rand.Float64() * float64(wait))
		}
		b.queue.AddAfter(o, max(delay, wait))
	default:
		b.queue.Add(o) // enters the queue with Done
	}
	b.queue.Done(o)
}

// setApart sets whether an object makes its namespace suspect.
func (b *backlog) setApart(o *objectQueue, apart bool) {
	switch namespace := o.namespace(); {
	case apart && !o.apart:
		b.suspects[namespace]++
	case !apart && o.apart:
		if b.suspects[namespace]--; b.suspects[namespace] == 0 {
			delete(b.suspects, namespace)
		}
	}
	o.apart = apart
}

// setRefused makes the namespace of an item suspect for failedFor.
func (b *backlog) setRefused(i *item, now time.Time) {
	if _, ok := b.refused[i.namespace()]; !ok {
		maps.DeleteFunc(b.refused, func(_ string, until time.Time) bool { return now.After(until) })
	}
	b.refused[i.namespace()] = now.Add(failedFor)
}

// suspectTurn reports whether objects make a namespace suspect. Notices are none: one that fails makes no other suspect, which all changes
// of its watch wait for.
func (b *backlog) suspectTurn(namespace string) bool {
	return namespace != noticeNamespace && b.suspects[namespace] > 0
}

// suspect reports whether a namespace is suspect.
func (b *backlog) suspect(namespace string, now func() time.Time) bool {
	return b.suspects[namespace] > 0 || len(b.refused) > 0 && now().Before(b.refused[namespace])
}

// take returns the oldest ready object, nil if there is none.
func (b *backlog) take() *objectQueue {
	if o := b.first; o != nil {
		b.first = nil
		return o
	}
	if len(b.again) > 0 {
		return takeFirst(&b.again)
	}
	if b.queue.Len() == 0 {
		return nil
	}
	o, _ := b.queue.Get() // nil at shutdown
	return o
}

// requeue gives an object back to the queue as if it had never been taken.
func (b *backlog) requeue(o *objectQueue) {
	b.queue.Add(o)
	b.queue.Done(o)
}

// readyQueue holds the ready objects, in the order in which they became ready. It calls ready when one enters it, so that
// the dispatcher can wait for an object and for a timer at once. The workqueue calls it under its lock.
type readyQueue struct {
	workqueue.Queue[*objectQueue]
	ready func(queued int)
}

// Push implements [workqueue.Queue].
func (q *readyQueue) Push(o *objectQueue) {
	q.Queue.Push(o)
	q.ready(q.Len())
}

// noticeNamespace stands for notices among the namespaces that take turns.
const noticeNamespace = "/notice"

// namespace is the one that the item is sent, and probed, as a part of: its own, or that of all notices.
func (i *item) namespace() string {
	if i.notice() {
		return noticeNamespace
	}
	return i.ref.Namespace
}

func (o *objectQueue) namespace() string {
	if len(o.items) > 0 {
		return o.items[0].namespace()
	}
	return o.ref.Namespace
}
