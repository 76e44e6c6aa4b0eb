package pipeline

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// An object whose record fails waits, and its later records wait behind it. If they waited in memory, one poisoned
// object that changes often, or many large ones, would fill the backlog and stop all the others. So under pressure they are
// parked: the log keeps them, and the object no more than their numbers. The failing records themselves stay in memory up to
// an eighth of it, or less beside many that are parked: beyond half, the log would not be read on.

// parked is a delta that waits in the log behind others of its object.
type parked struct {
	seq      uint64
	observed time.Time
	final    *sinks.Error // the item's
}

const (
	// parkedSize is what a parked delta counts towards the bound of the backlog.
	parkedSize = 40
	// loadBytes and loadItems bound what is read at once of an object that goes on, where there is room for it.
	loadBytes = 256 << 10
	loadItems = 256
)

// park parks what waits behind failing records, if the backlog takes more than a quarter of its memory. It is called
// when something has come to the log or from it. p.mu is held.
func (p *Pipeline) park() {
	if p.budget.memory <= p.options.MaxBytes/4 || p.log.bytes >= p.options.MaxDiskBytes {
		return
	}
	for o := range p.backlog.tails {
		if o.inFlight || len(o.items) > 0 && o.items[0].notice() {
			continue
		}
		switch {
		case len(o.items) == 0: // its head is parked
		case len(o.parked) == 0:
			o.items, o.tail = o.items[:1:1], o.items[1:]
		default:
			p.parkAgain(o)
		}
		n := 0
		for ; n < len(o.tail) && o.tail[n].logged && o.tail[n].seq < p.log.written; n++ {
			o.parked = append(o.parked, p.unload(o, o.tail[n]))
		}
		clear(o.tail[:n]) // the head may keep their array for long
		if o.tail = o.tail[n:]; len(o.parked) == 0 {
			o.items, o.tail = append(o.items, o.tail...), nil
		}
		p.backlog.note(o)
	}
	for o := range p.backlog.heads {
		if p.backlog.stuck <= min(p.options.MaxBytes/8, p.options.MaxBytes*7/16-p.budget.parked) {
			return
		}
		p.parkHead(o)
	}
}

// parkHead parks the failing record of an object until it is tried again.
func (p *Pipeline) parkHead(o *objectQueue) {
	if o.inFlight || len(o.items) != 1 || len(o.parked) == 0 && len(o.tail) > 0 {
		return
	}
	i := o.items[0]
	if i.notice() || !i.logged || i.seq >= p.log.written {
		return
	}
	o.parked = append([]parked{p.unload(o, i)}, o.parked...)
	o.attempts, o.failed = i.attempts, i.failed
	o.items = nil
	p.backlog.note(o)
}

// tried notes that a record was tried that was read back; then the next may be read.
func (p *Pipeline) tried(o *objectQueue) {
	if !o.back {
		return
	}
	if o.returned {
		p.log.returned.Add(o.namespace(), -1)
	}
	p.log.back--
	o.back, o.returned = false, false
	p.log.wakeReader()
}

// keptBack notes that such a record was tried in a batch that is kept: others wait no longer for that, but it stays in memory, until it
// fails while others wait to be read back.
func (p *Pipeline) keptBack(o *objectQueue) {
	if o.returned {
		p.log.returned.Add(o.namespace(), -1)
		o.returned = false
		p.log.wakeReader()
	}
}

// parkAgain parks what came back of an object that fails once more.
func (p *Pipeline) parkAgain(o *objectQueue) {
	back := o.items[1:]
	if len(back) == 0 {
		return
	}
	all := make([]parked, 0, len(back)+len(o.parked))
	for _, i := range back {
		all = append(all, p.unload(o, i))
	}
	clear(back)
	o.items, o.parked = o.items[:1:1], append(all, o.parked...)
}

// unload removes an item of an object from memory and returns what is kept of it.
func (p *Pipeline) unload(o *objectQueue, i *item) parked {
	p.backlog.forget(i)
	p.backlog.resize(o, -i.size)
	p.backlog.countStuck(i.namespace(), 0, 1)
	p.budget.memory -= i.size - parkedSize
	p.budget.parked += parkedSize
	return parked{i.seq, i.observed, i.final}
}

// readParked reads what was parked of one object that goes on, and reports whether another one may be read. The rest of the log is
// read in turn: large objects that fail come back often.
func (p *Pipeline) readParked(ctx context.Context) (more bool) {
	p.mu.Lock()
	o := p.log.returning.next(p.mayReturn)
	if o == nil || ctx.Err() != nil {
		p.mu.Unlock()
		return false
	}
	wanted := o.parked[:min(len(o.parked), loadItems)]
	most := min(loadBytes, p.options.MaxBytes/2-p.budget.memory) // many may come back at once
	p.mu.Unlock()

	entries, err := p.readEntries(wanted, most)
	if err != nil {
		p.logger.Error("cannot read what waits in the log; it goes on waiting",
			"resource", delta.ResourceName(o.ref.Resource), "namespace", o.ref.Namespace, "name", o.ref.Name, "err", err)
		p.pauseReading(ctx)
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.returning.take(o.namespace())
	p.comeBack(o, entries)
	return len(p.log.returning.turns) > 0
}

// mayReturn reports whether parked records of an object of a namespace may be read back: if none that were read back are untried, or up to
// 3/8 of the memory, as the log needs half to be read. A namespace without a failing one of these objects may have one beyond that: up to
// 7/16; up to 3/4 if no namespace has one, or the breaker is tripped. So it does not wait until a sink that hangs has tried those of others.
func (p *Pipeline) mayReturn(namespace string) bool {
	memory, returned := p.budget.memory, &p.log.returned
	return p.log.back == 0 || memory <= p.options.MaxBytes*3/8 ||
		memory <= p.options.MaxBytes*7/16 && returned.Of(namespace) == 0 ||
		memory <= p.options.MaxBytes*3/4 && (returned.Total == 0 || p.breaker.tripped && returned.Of(namespace) == 0)
}

// returnQueue holds objects of which something is to be read back: the namespaces in turn, and the objects of each in order.
type returnQueue struct {
	turns []string
	of    map[string][]*objectQueue
}

func (q *returnQueue) push(o *objectQueue) {
	if q.of == nil {
		q.of = map[string][]*objectQueue{}
	}
	objects := q.of[o.namespace()]
	if len(objects) == 0 {
		q.turns = append(q.turns, o.namespace())
	}
	q.of[o.namespace()] = append(objects, o)
}

// next returns the first object of the namespace whose turn it is, of those that may; nil if there is none.
func (q *returnQueue) next(may func(namespace string) bool) *objectQueue {
	for _, namespace := range q.turns {
		if may(namespace) {
			return q.of[namespace][0]
		}
	}
	return nil
}

// take takes the first object of a namespace out, which ends its turn.
func (q *returnQueue) take(namespace string) {
	n := slices.Index(q.turns, namespace)
	q.turns = slices.Delete(q.turns, n, n+1)
	objects := q.of[namespace]
	if takeFirst(&objects); len(objects) == 0 {
		delete(q.of, namespace)
		return
	}
	q.of[namespace], q.turns = objects, append(q.turns, namespace)
}

// readEntries reads of the entries that are wanted until they have so many bytes, but at least one.
func (p *Pipeline) readEntries(wanted []parked, most int64) ([]delta.Entry, error) {
	var entries []delta.Entry
	for bytes := int64(0); len(entries) == 0 || len(entries) < len(wanted) && bytes < most; {
		seq := wanted[len(entries)].seq
		read, err := p.options.Log.Read(seq, 1)
		if err != nil {
			return nil, err
		}
		if len(read) == 0 || read[0].Seq != seq || read[0].Delta == nil {
			return nil, fmt.Errorf("entry %d is not in the log", seq)
		}
		entries = append(entries, read[0])
		bytes += read[0].Delta.Size()
	}
	return entries, nil
}

// comeBack puts parked deltas in front of what their object has in memory. p.mu is held.
func (p *Pipeline) comeBack(o *objectQueue, entries []delta.Entry) {
	for n, e := range entries {
		i := p.logged(e)
		i.final = o.parked[n].final
		if n == 0 && !o.failed.IsZero() { // the log has an earlier count
			i.attempts, i.failed = o.attempts, o.failed
			o.attempts, o.failed = 0, time.Time{}
		}
		p.backlog.resize(o, i.size)
		p.backlog.countStuck(o.ref.Namespace, 0, -1)
		p.budget.memory += i.size - parkedSize
		p.budget.parked -= parkedSize
		i.arrival = p.backlog.returned.PushBack(i)
		o.items = append(o.items, i)
	}
	if o.parked = o.parked[len(entries):]; len(o.parked) == 0 {
		o.items = append(o.items, o.tail...)
		o.parked, o.tail = nil, nil
	}
	if !o.back {
		o.back = true
		p.log.back++
	}
	if _, failing := p.backlog.failing[o]; failing {
		o.returned = true // it would be parked again before it is tried
		p.log.returned.Add(o.namespace(), 1)
		p.backlog.note(o)
	}
	p.backlog.requeue(o)
}
