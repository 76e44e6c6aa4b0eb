package pipeline

import (
	"context"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Run delivers until ctx ends, and returns when no delivery is under way.
func (p *Pipeline) Run(ctx context.Context) {
	defer p.backlog.queue.ShutDown()
	var workers sync.WaitGroup
	for range p.options.Limits.Concurrency {
		workers.Go(func() {
			for b := range p.batches {
				p.deliver(ctx, b)
				<-p.slots
				p.signal()
			}
		})
	}
	if p.options.Log != nil {
		workers.Go(func() { p.load(ctx) })
	}
	p.dispatch(ctx)
	close(p.batches)
	workers.Wait()
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

// countCall counts a call that begins, or with -1 one that has ended. p.mu is held.
func (p *Pipeline) countCall(b *batch, n int) {
	if b.suspect {
		p.apartCalls.Add(b.items[0].namespace(), n)
	}
	if b.alone() {
		p.aloneCalls.Add(b.items[0].namespace(), n)
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
		if b != nil && !b.probe && b.begun.IsZero() {
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
		if b.suspect && !p.mayCallApart(b.items[0].namespace()) {
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
	p.fill(b)
	if len(b.items) == 0 {
		p.recycle(b)
		return nil, wait
	}
	return b, 0
}

// fill takes ready objects from the queue into the batch until it is full. What does not fit begins the next one. p.mu is held.
func (p *Pipeline) fill(b *batch) {
	limits := p.options.Limits
	for !p.full(b) {
		o := p.nextObject(b)
		if o == nil {
			return
		}
		if p.awaitReturn(o) {
			continue
		}
		taken := 0
		for n, i := range o.items {
			if len(b.records) == limits.MaxRecords || taken > 0 && (limits.OnePerKey || o.isolated) {
				break
			}
			if n > 0 && o.items[n-1].needsLetter() && !i.needsLetter() { // it would be sent before the letter is written
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
				p.apart.putBack(o)
			} else {
				p.backlog.first = o
			}
			return
		}
	}
}

// nextObject returns the object that the batch takes next, nil if there is none. Every second batch is of a suspect namespace, if one
// waits. p.mu is held.
func (p *Pipeline) nextObject(b *batch) *objectQueue {
	if len(b.records) > 0 && b.apart {
		o := p.apart.next(b.items[0].namespace())
		b.closed = o == nil
		return o
	}
	if len(b.records) > 0 {
		return p.takeReady()
	}
	b.apart, b.suspect = false, false // an object that began it may have had to be read first
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

// beginApart begins a batch of a suspect namespace, if one may be sent, or of one that is not suspect any more.
func (p *Pipeline) beginApart(b *batch) *objectQueue {
	o := p.apart.begin(func(namespace string) bool {
		return p.maySendApart(namespace) || !p.backlog.suspect(namespace, p.now) && p.mayCallBeside(namespace)
	}, p.maySendAlone)
	b.apart, b.suspect = o != nil, o != nil
	return o
}

// mayCallBeside reports whether there may be a call more for a namespace that is not suspect itself: all but one, or one more.
func (p *Pipeline) mayCallBeside(namespace string) bool {
	calls := p.options.Limits.Concurrency
	return p.apartCalls.Room(namespace, max(calls-1, calls*3/4+1))
}

// maySendApart reports whether another batch of a suspect namespace may be sent, and maySendAlone whether it may hold an isolated
// object: at most three quarters of the calls are for the former, and half for the latter, so that a sink which hangs on them still
// takes the others. The bound on what is encoded is shared like that, too.
func (p *Pipeline) maySendApart(namespace string) bool {
	encoded, calls := p.budget.encoded, &p.apartCalls
	return p.mayCallApart(namespace) &&
		(calls.Total == 0 || encoded <= p.options.MaxBytes/4 || calls.Of(namespace) == 0 && encoded <= p.options.MaxBytes*3/8)
}

// slotFor returns what the slot of a call is for.
func (p *Pipeline) slotFor(b *batch) sinks.Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	namespace := b.items[0].namespace()
	now := p.now()
	doubtful := b.alone() || p.backlog.suspect(namespace, p.now) && !p.backlog.turns.lately(namespace, now)
	return sinks.Call{Namespace: namespace, Doubtful: doubtful && !b.severalNamespaces()}
}

// mayCallApart and mayCallAlone report what calls under way leave, for what is encoded already, and for probes, which are few. A namespace
// has at most half of these calls while others wait, or if nothing of it got through lately: perhaps the sink hangs on it. If something did,
// it may have the last call, too.
func (p *Pipeline) mayCallApart(namespace string) bool {
	calls, most := &p.apartCalls, p.options.Limits.Concurrency*3/4
	lately := p.backlog.turns.lately(namespace, p.now())
	if calls.Of(namespace) >= max(1, (most+1)/2) && (!lately || p.apart.others(namespace)) {
		return false
	}
	return calls.Room(namespace, most) || lately && calls.Total < most
}

func (p *Pipeline) mayCallAlone(namespace string) bool {
	return p.mayCallApart(namespace) && p.aloneCalls.Room(namespace, p.options.Limits.Concurrency/2)
}

func (p *Pipeline) maySendAlone(namespace string) bool {
	return p.maySendApart(namespace) && p.mayCallAlone(namespace)
}

// takeReady takes objects from the queue until one is of no suspect namespace. The others wait in p.apart.
func (p *Pipeline) takeReady() *objectQueue {
	for {
		o := p.backlog.take()
		if o == nil || !p.backlog.suspect(o.namespace(), p.now) {
			return o
		}
		p.apart.push(o)
	}
}

// appendRecord adds an item to the batch, and reports whether there was room for it. p.mu is held.
func (p *Pipeline) appendRecord(b *batch, o *objectQueue, i *item) bool {
	record, arena := p.encoder.Encode(b.arena, &delta.Entry{Delta: i.delta, Gap: i.gap, Mark: i.mark})
	grown := b.bytes + int64(record.Size())
	if grown > p.options.Limits.MaxBytes && len(b.records) > 0 {
		return false
	}
	p.budget.encoded += int64(len(arena) - len(b.arena))
	b.bytes, b.arena = grown, arena
	b.objects, b.items, b.records = append(b.objects, o), append(b.items, i), append(b.records, record)
	return true
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
		p.fill(b)
		p.mu.Unlock()
	}
}
