package pipeline

import (
	"fmt"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// An object whose record fails waits, and its later records wait behind it. Once a commit has written them they leave memory: the object keeps
// their numbers, and they are read back when it is its turn. So what fails takes no room that others need, and one object that changes often
// does not either.
//
// What is kept counts towards the bound of the backlog. It may take a quarter of it: a flow with too much of that, or with too many objects that
// fail, is stopped. Its later changes wait behind its cursor, and nothing of other flows waits for it.

const (
	// objectSize is what a failing object counts towards the bound once its records left memory, and recordSize each of them; at most what
	// they counted before.
	objectSize = 1024
	recordSize = 64
	// returnBytes and returnItems bound what is read back at once of an object.
	returnBytes = 256 << 10
	returnItems = 256
	// maxFailing is how many objects of a flow may fail before it is stopped.
	maxFailing = 1000
	// stuckShare is the part of the memory that what is kept may take, and stuckParts what one flow may have of what is left of that: alone,
	// one sixty-eighth of the memory.
	stuckShare = 1.0 / 4
	stuckParts = 16
)

// unloaded is a record of an object that is in the log only.
type unloaded struct {
	seq      uint64
	observed int64 // Unix nanoseconds
	size     int64 // in memory
	watch    string
	snapshot bool         // it is of one
	final    *sinks.Error // the item's
}

// counts is what the record counts towards the bound meanwhile.
func (u *unloaded) counts() int64 { return min(u.size, recordSize) }

// stopIfStuck stops a flow if too much of it is stuck, and reports whether it is stopped.
func (p *Pipeline) stopIfStuck(f *flow) bool {
	l := &p.log
	if f.stopped || f.failing == 0 || !p.tooStuck(f, 1) {
		return f.stopped
	}
	f.stopped = true
	l.stopped[f] = struct{}{}
	if n := slices.Index(l.turns, f); n >= 0 {
		l.turns = slices.Delete(l.turns, n, n+1)
	}
	if l.wanting == f {
		l.wanting = nil
	}
	p.logger.Warn("too many objects of the namespace fail; its further changes wait in the log", "namespace", f.name, "failing", f.failing)
	return true
}

// resumeIfFree ends that a flow is stopped once half as much of it is stuck: else it would be stopped again at once.
func (p *Pipeline) resumeIfFree(f *flow) {
	if p.tooStuck(f, 2) {
		return
	}
	f.stopped = false
	delete(p.log.stopped, f)
	if f.behind {
		p.log.turns = append(p.log.turns, f)
	}
	p.logger.Info("the changes of the namespace are read on", "namespace", f.name, "failing", f.failing)
	p.log.dropIdle(f)
}

// tooStuck reports whether too much of a flow is stuck, or would be if it were so many times as much.
func (p *Pipeline) tooStuck(f *flow, times int64) bool {
	left := int64(stuckShare*float64(p.options.MaxBytes)) - p.budget.stuck
	return f.failing > 0 && f.name != noticeNamespace &&
		(int64(f.failing)*times >= maxFailing || f.stuck*times*stuckParts > max(left, 0))
}

// unloadAll unloads what a commit has written.
func (p *Pipeline) unloadAll() {
	for o := range p.backlog.unloadable {
		p.unload(o)
	}
}

// unload removes from memory what waits of a failing object, and is in the log. The records that are on disk only come between those that were
// read back, which are tried first, and those that came in since.
func (p *Pipeline) unload(o *objectQueue) {
	if p.options.Log == nil {
		return
	}
	_, failing := p.backlog.failing[o]
	if failing && !o.inFlight && !o.back && len(o.items) > 0 && !o.items[0].notice() {
		p.unloadItems(o)
	}
	if len(o.unloaded) > 0 {
		n := p.written(o, o.tail)
		o.unloaded = append(o.unloaded, p.unloadFirst(o, o.tail[:n])...)
		o.tail = slices.Clone(o.tail[n:]) // their array holds what was unloaded
	}
	p.backlog.note(o)
}

// unloadItems unloads the first items of an object that fails.
func (p *Pipeline) unloadItems(o *objectQueue) {
	n := p.written(o, o.items)
	if n == 0 {
		return
	}
	head := o.items[0]
	if o.attempts, o.failed = head.attempts, head.failed; o.kept == 0 {
		o.kept = min(objectSize, head.size-min(head.size, recordSize))
		p.keep(o.flow, o.kept)
	}
	if n < len(o.items) { // then nothing is unloaded yet
		o.tail = slices.Clone(o.items[n:])
	}
	o.unloaded = append(p.unloadFirst(o, o.items[:n]), o.unloaded...)
	o.items = nil
}

// written returns how many of the first items of an object can be read back from the log. Damaged entries of several flows may count as one
// object.
func (p *Pipeline) written(o *objectQueue, items []*item) int {
	n := 0
	for n < len(items) && items[n].logged && items[n].seq < p.log.written && items[n].flow == o.flow {
		n++
	}
	return n
}

func (p *Pipeline) unloadFirst(o *objectQueue, items []*item) []unloaded {
	var out []unloaded
	for _, i := range items {
		p.backlog.forget(i)
		p.backlog.resize(o, -i.size)
		p.vacate(i)
		u := unloaded{seq: i.seq, observed: i.observed.UnixNano(), size: i.size, watch: i.watch, snapshot: i.ofSnapshot(), final: i.final}
		p.keep(o.flow, u.counts())
		out = append(out, u)
	}
	return out
}

// keep counts what is kept in place of records that left memory.
func (p *Pipeline) keep(f *flow, size int64) {
	f.stuck += size
	p.budget.stuck += size
	p.budget.memory += size
}

// release counts an object that fails no more.
func (p *Pipeline) release(o *objectQueue) {
	if o.kept > 0 {
		p.keep(o.flow, -o.kept)
		o.kept = 0
	}
}

// tried notes that a record was tried that was read back; then others may be.
func (p *Pipeline) tried(o *objectQueue) {
	if o.back {
		p.log.back -= o.backSize
		o.flow.back -= o.backSize
		o.back, o.backSize = false, 0
		p.log.wakeLoader()
	}
}

// awaitReturn has the next records of an object read that has none in memory: it stays out of the queue until then.
func (p *Pipeline) awaitReturn(o *objectQueue) bool {
	if len(o.items) > 0 {
		return false
	}
	p.log.returning.push(o)
	p.log.wakeLoader()
	return true
}

// mayReturn reports whether records of an object may be read back. What was read back and is not tried yet has a quarter of the memory, and
// those of one flow a quarter of what is left of it: it does not wait until a sink that hangs has tried those of others.
func (p *Pipeline) mayReturn(o *objectQueue) bool {
	left := p.options.MaxBytes/4 - p.log.back
	return p.log.back == 0 || left > 0 && o.flow.back <= left/4 && o.unloaded[0].size <= p.free(o.flow)
}

// readReturning reads the records of one object that is to be sent, and reports whether another one may be read.
func (p *Pipeline) readReturning() (more bool, err error) {
	p.mu.Lock()
	o := p.log.returning.next(p.mayReturn)
	if o == nil {
		p.mu.Unlock()
		return false, nil
	}
	name, wanted := o.flow.name, o.unloaded[:min(len(o.unloaded), returnItems)]
	most := min(returnBytes, p.options.MaxBytes/2-p.budget.memory)
	p.mu.Unlock()

	entries, err := p.readUnloaded(name, wanted, most)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.returning.take(o)
	p.comeBack(o, entries)
	return len(p.log.returning.turns) > 0, nil
}

// readUnloaded reads of the entries that are wanted until they have so many bytes, but at least one.
func (p *Pipeline) readUnloaded(flow string, wanted []unloaded, most int64) ([]delta.Entry, error) {
	var entries []delta.Entry
	for bytes := int64(0); len(entries) == 0 || len(entries) < len(wanted) && bytes+wanted[len(entries)].size <= most; {
		seq := wanted[len(entries)].seq
		read, _, err := p.options.Log.ReadFlow(flow, seq, 1)
		if err != nil {
			return nil, err
		}
		if len(read) == 0 || read[0].Seq != seq || read[0].Delta == nil {
			return nil, fmt.Errorf("entry %d is not in the log", seq)
		}
		bytes += wanted[len(entries)].size
		entries = append(entries, read[0])
	}
	return entries, nil
}

// comeBack puts records that were read back in front of what their object has in memory. p.mu is held.
func (p *Pipeline) comeBack(o *objectQueue, entries []delta.Entry) {
	for n, e := range entries {
		i, u := p.logged(e), &o.unloaded[n]
		i.final, i.size = u.final, u.size
		if n == 0 && !o.failed.IsZero() { // no commit may have written the last attempt
			i.attempts, i.failed = o.attempts, o.failed
			o.attempts, o.failed = 0, time.Time{}
		}
		p.keep(o.flow, -u.counts())
		p.occupy(o.flow, i)
		p.backlog.resize(o, i.size)
		i.arrival = p.backlog.loaded.PushBack(i)
		o.items = append(o.items, i)
		o.backSize += i.size
	}
	if o.unloaded = o.unloaded[len(entries):]; len(o.unloaded) == 0 {
		o.items = append(o.items, o.tail...)
		o.unloaded, o.tail = nil, nil
	}
	o.back = true
	p.log.back += o.backSize
	o.flow.back += o.backSize
	p.backlog.note(o)
	p.backlog.requeue(o)
}

// returnQueue holds objects of which something is to be read back: the flows in turn, and the objects of each in order.
type returnQueue struct {
	turns []*flow
	of    map[*flow][]*objectQueue
}

func (q *returnQueue) push(o *objectQueue) {
	if q.of == nil {
		q.of = map[*flow][]*objectQueue{}
	}
	if len(q.of[o.flow]) == 0 {
		q.turns = append(q.turns, o.flow)
	}
	q.of[o.flow] = append(q.of[o.flow], o)
}

// next returns the first object of the flow whose turn it is, of those that may; nil if there is none.
func (q *returnQueue) next(may func(*objectQueue) bool) *objectQueue {
	for _, f := range q.turns {
		if o := q.of[f][0]; may(o) {
			return o
		}
	}
	return nil
}

// take takes the first object of a flow out, which ends the turn of the flow.
func (q *returnQueue) take(o *objectQueue) {
	f := o.flow
	q.turns = slices.DeleteFunc(q.turns, func(other *flow) bool { return other == f })
	objects := q.of[f]
	if takeFirst(&objects); len(objects) == 0 {
		delete(q.of, f)
		return
	}
	q.of[f], q.turns = objects, append(q.turns, f)
}
