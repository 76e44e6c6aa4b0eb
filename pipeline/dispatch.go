package pipeline

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// batch is what one Deliver call gets: records, and the items and objects they came from, index by index. An object
// that has several items in a batch has them in order.
type batch struct {
	objects []*objectQueue
	items   []*item
	records []sinks.Record
	bytes   int64
	// probe is set if the batch is sent to see whether the breaker can be reset.
	probe bool
	// ahead is set if the record is of a candidate from beyond the log's cursor.
	ahead bool
	// apart is set if all objects are of one suspect namespace.
	apart bool
	// tries counts the calls so far.
	tries int
	// mark is the number of deliveries that had succeeded when the batch was first sent, or last failed.
	mark uint64
	// due is when a batch that failed may be tried again.
	due time.Time
	// arena holds the bodies of the records.
	arena []byte
	// closed is set if the batch takes no more, though it is not full: what comes next does not fit, or is isolated.
	closed bool
}

// batches pools batches for reuse, since sinks keep nothing of a record. It saves more than half of the allocations for a delta.
var batches = sync.Pool{New: func() any { return new(batch) }}

// maxArena is the largest arena that is kept; a larger one was made for a large object. append grows an arena beyond its content,
// so this is four times Kafka's default batch.
const maxArena = 4 << 20

func newBatch() *batch { return batches.Get().(*batch) } //nolint:forcetypeassert // as above

// recycle gives a batch up that no sink has any more. p.mu is held.
func (p *Pipeline) recycle(b *batch) {
	p.budget.encoded -= int64(len(b.arena))
	clear(b.objects)
	clear(b.items)
	clear(b.records)
	if cap(b.arena) > maxArena {
		b.arena = nil
	}
	*b = batch{objects: b.objects[:0], items: b.items[:0], records: b.records[:0], arena: b.arena[:0]}
	batches.Put(b)
}

// beatInterval bounds how long the dispatcher sleeps, so that /healthz can see that it runs.
const beatInterval = 2 * time.Second

// dispatch gathers batches and hands them to the workers until ctx ends.
func (p *Pipeline) dispatch(ctx context.Context) {
	for {
		if !p.awaitSlot(ctx) {
			return
		}
		b := p.next(ctx)
		if b == nil {
			return
		}
		p.mu.Lock()
		p.countCall(b, 1)
		p.mu.Unlock()
		p.batches <- b // a worker is free, since we hold its slot
	}
}

// maySendApart reports whether another batch of a suspect namespace may be sent, and maySendAlone whether it may hold an isolated
// object: at most three quarters of the calls are for the former, and half for the latter, so that a sink which hangs on them still
// takes the others.
func (p *Pipeline) maySendApart() bool {
	return p.apartCalls < max(1, p.options.Limits.Concurrency*3/4)
}

func (p *Pipeline) maySendAlone() bool {
	return p.maySendApart() && p.aloneCalls < max(1, p.options.Limits.Concurrency/2)
}

// countCall counts a call that begins, or with -1 one that has ended. p.mu is held.
func (p *Pipeline) countCall(b *batch, n int) {
	if b.apart {
		p.apartCalls += n
	}
	if b.alone() {
		p.aloneCalls += n
	}
}

func (p *Pipeline) awaitSlot(ctx context.Context) bool {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	for {
		select {
		case p.slots <- struct{}{}:
			return ctx.Err() == nil
		case <-ticker.C:
			p.mu.Lock()
			p.beat = p.now()
			p.mu.Unlock()
		case <-ctx.Done():
			return false
		}
	}
}

// next waits for a batch that may be sent; nil when ctx ends.
func (p *Pipeline) next(ctx context.Context) *batch {
	timer := time.NewTimer(beatInterval)
	defer timer.Stop()
	for ctx.Err() == nil {
		b, wait := p.pick()
		if b != nil && !b.probe && b.tries == 0 {
			p.linger(ctx, b)
		}
		if b != nil && len(b.items) > 0 {
			return b
		}
		timer.Reset(min(wait, beatInterval))
		select {
		case <-p.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// pick returns what may be sent now, or how long to wait at most if nothing else happens.
func (p *Pipeline) pick() (*batch, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.beat = now
	if p.breaker.tripped {
		return p.pickProbe(now)
	}
	wait := beatInterval
	for n, b := range p.retries {
		if b.apart && !p.maySendApart() {
			continue
		}
		if d := b.due.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		p.retries = append(p.retries[:n:n], p.retries[n+1:]...)
		return b, 0
	}
	if p.budget.encoded > p.options.MaxBytes/2 { // a batch that ends wakes the dispatcher
		return nil, wait
	}
	b := newBatch()
	if p.aheadNext = !p.aheadNext; p.aheadNext { // what is in memory has its turn too: it makes room when it is sent, or was tried
		p.fillAhead(b)
	}
	if b.ahead {
		b.closed = true
		return b, 0
	}
	p.fill(b, p.options.Limits.MaxRecords)
	if len(b.items) == 0 {
		p.fillAhead(b)
	}
	if len(b.items) == 0 {
		p.recycle(b)
		return nil, wait
	}
	b.closed = b.closed || b.ahead
	return b, 0
}

// pickProbe returns one record of a ready object, or of a candidate, or a batch that failed, in turn. An object that was not tried goes
// first, the newest of them: behind a thousand objects that the sink refuses it would wait for an hour. What comes of a namespace that
// had no probe yet does not wait for its turn.
func (p *Pipeline) pickProbe(now time.Time) (*batch, time.Duration) {
	wait, early := p.breaker.wait(now)
	if wait > 0 {
		return nil, wait
	}
	b := newBatch()
	b.probe = true
	switch i := p.log.candidate; {
	case i != nil && p.backlog.turns[i.turn()] == 0:
		p.fillAhead(b)
	case p.backlog.unprobed:
		p.backlog.unprobed = false
		p.fill(b, 1)
	default:
		if p.breaker.ahead = !p.breaker.ahead; p.breaker.ahead {
			p.fillAhead(b)
		}
	}
	if len(b.items) == 0 {
		if p.breaker.fresh = !p.breaker.fresh; p.breaker.fresh || early || len(p.retries) == 0 {
			p.fill(b, 1)
		}
	}
	if len(b.items) == 0 {
		p.recycle(b)
		if early || len(p.retries) == 0 {
			return nil, beatInterval
		}
		b = p.takeRetry()
	}
	b.probe = true
	p.breaker.probed(now)
	return b, 0
}

// takeRetry returns a batch that failed: the one with the namespace whose last probe is longest ago. One tenant may have dozens, and
// another a gap that all changes of its watch wait for.
func (p *Pipeline) takeRetry() *batch {
	turns := p.backlog.turns
	last := func(b *batch) int {
		first := slices.MinFunc(b.items, func(i, j *item) int { return cmp.Compare(turns[i.turn()], turns[j.turn()]) })
		return turns[first.turn()]
	}
	b := slices.MinFunc(p.retries, func(a, b *batch) int { return cmp.Compare(last(a), last(b)) })
	n := slices.Index(p.retries, b)
	p.retries = slices.Delete(p.retries, n, n+1)
	for n, i := range b.items {
		if n == 0 || i.turn() != b.items[n-1].turn() {
			turns.had(i.turn())
		}
	}
	return b
}

const (
	// wakeThreshold is how many objects wake a dispatcher that lingers: waking up costs more than encoding an object.
	wakeThreshold = 16
	// lingerPollInterval is how often a waiting batch checks the queue, since a few objects may fill it.
	lingerPollInterval = 5 * time.Millisecond
)

// linger fills a batch that has room until it is full or Limits.Linger is over.
func (p *Pipeline) linger(ctx context.Context, b *batch) {
	limits := p.options.Limits
	if limits.Linger <= 0 || p.full(b) {
		return
	}
	end := time.Now().Add(limits.Linger)
	timer := time.NewTimer(min(lingerPollInterval, limits.Linger))
	defer timer.Stop()
	defer p.signal() // a wake-up that was taken, or not given, here may have been meant for next
	defer p.wakeAt.Store(0)
	for over := false; !over && !p.full(b); {
		p.wakeAt.Store(int64(min(wakeThreshold, limits.MaxRecords-len(b.records))))
		select {
		case <-p.wake:
		case <-timer.C:
			left := time.Until(end)
			over = left <= 0
			timer.Reset(min(lingerPollInterval, max(left, 0)))
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		p.fill(b, limits.MaxRecords)
		p.mu.Unlock()
	}
}

func (p *Pipeline) full(b *batch) bool {
	return b.closed || len(b.records) >= p.options.Limits.MaxRecords || b.bytes >= p.options.Limits.MaxBytes || b.alone()
}

// alone reports whether the batch holds an isolated object, which is sent alone.
func (b *batch) alone() bool {
	return len(b.objects) > 0 && b.objects[len(b.objects)-1].isolated
}

func (b *batch) severalNamespaces() bool {
	return slices.ContainsFunc(b.objects, func(o *objectQueue) bool { return o.turn() != b.objects[0].turn() })
}

// nextObject returns the object that the batch takes next, nil if there is none. Every second batch is of a suspect namespace, if one
// waits. p.mu is held.
func (p *Pipeline) nextObject(b *batch) *objectQueue {
	if b.probe {
		return p.takeProbe(b)
	}
	if len(b.records) > 0 && b.apart {
		o := p.apart.next(b.objects[0].turn())
		b.closed = o == nil
		return o
	}
	if len(b.records) > 0 {
		return p.takeReady()
	}
	b.apart = false
	if p.apartNext = !p.apartNext; p.apartNext {
		if o := p.beginApart(b); o != nil {
			return o
		}
	}
	if o := p.takeReady(); o != nil {
		return o
	}
	return p.beginApart(b)
}

// beginApart begins a batch of a suspect namespace, if one may be sent.
func (p *Pipeline) beginApart(b *batch) *objectQueue {
	if !p.maySendApart() {
		return nil
	}
	o := p.apart.begin(p.maySendAlone())
	b.apart = o != nil
	return o
}

// takeReady takes objects from the queue until one is of no suspect namespace. The others wait in p.apart.
func (p *Pipeline) takeReady() *objectQueue {
	for {
		o := p.backlog.take()
		if o == nil || !p.backlog.suspect(o, p.now()) {
			return o
		}
		p.apart.push(o)
	}
}

// takeProbe takes the object for a probe. All that are ready wait in p.apart from now on, until the breaker is reset.
func (p *Pipeline) takeProbe(b *batch) *objectQueue {
	for o := p.backlog.take(); o != nil; o = p.backlog.take() {
		p.apart.push(o)
	}
	o := p.apart.probe(p.backlog.turns, p.backlog.suspects, p.maySendApart(), p.maySendAlone())
	b.apart = o != nil && p.backlog.suspect(o, p.now())
	return o
}

// fill takes ready objects from the queue into the batch, up to most records. What does not fit begins the next one. p.mu
// is held.
func (p *Pipeline) fill(b *batch, most int) {
	limits := p.options.Limits
	for len(b.records) < most && b.bytes < limits.MaxBytes && !b.closed && !b.alone() {
		o := p.nextObject(b)
		if o == nil {
			return
		}
		if len(o.items) == 0 {
			p.log.returning = append(p.log.returning, o) // it stays out of the queue until its next deltas are read
			p.log.wakeReader()
			continue
		}
		taken := 0
		for _, i := range o.items {
			if len(b.records) == most || taken > 0 && (limits.OnePerKey || o.isolated) {
				break
			}
			if !p.appendRecord(b, o, i) {
				break
			}
			taken++
		}
		o.inFlight = taken > 0
		if taken == 0 { // too large for what is left
			b.closed = true
			if b.apart {
				p.apart.push(o)
			} else {
				p.backlog.first = o
			}
			return
		}
	}
}

// appendRecord adds an item to the batch, and reports whether there was room for it. p.mu is held.
func (p *Pipeline) appendRecord(b *batch, o *objectQueue, i *item) bool {
	record, arena := p.encoder.encode(b.arena, i)
	grown := b.bytes + int64(record.Size())
	if grown > p.options.Limits.MaxBytes && len(b.records) > 0 {
		return false
	}
	p.budget.encoded += int64(len(arena) - len(b.arena))
	b.bytes, b.arena = grown, arena
	b.objects, b.items, b.records = append(b.objects, o), append(b.items, i), append(b.records, record)
	return true
}
