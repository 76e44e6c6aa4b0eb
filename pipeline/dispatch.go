package pipeline

import (
	"context"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// unit is what one Deliver call gets: records, and the items and objects they came from, index by index. An object
// that has several items in a unit has them in order.
type unit struct {
	objects []*object
	items   []*item
	records []sinks.Record
	bytes   int64
	// probe says that the unit asks a closed gate's sink for a sign of life.
	probe bool
	// order is which ready objects the unit takes.
	order order
	// tries counts the calls so far.
	tries int
	// mark is the number of deliveries that had succeeded when the unit was first sent, or last failed.
	mark uint64
	// due is when a unit that failed may be tried again.
	due time.Time
	// arena holds the bodies of the records.
	arena []byte
	// closed says that the unit takes no more, though it is not full: what comes next does not fit, or travels alone.
	closed bool
}

// units are those of the past, for their memory: sinks keep nothing of a record. For each delta that saves more than what
// is left to allocate for it.
var units = sync.Pool{New: func() any { return new(unit) }}

// maxArena is the largest arena that is kept; a larger one was made for a large object. One that has grown to hold a batch
// of Kafka's default size is larger than that.
const maxArena = 4 << 20

func newUnit() *unit { return units.Get().(*unit) } //nolint:forcetypeassert // as above

// recycle gives a unit up that no sink has any more.
func (u *unit) recycle() {
	clear(u.objects)
	clear(u.items)
	clear(u.records)
	if cap(u.arena) > maxArena {
		u.arena = nil
	}
	*u = unit{objects: u.objects[:0], items: u.items[:0], records: u.records[:0], arena: u.arena[:0]}
	units.Put(u)
}

// beatInterval bounds how long the dispatcher sleeps, so that its beat tells that it lives.
const beatInterval = 2 * time.Second

// dispatch gathers units and hands them to the workers until ctx ends.
func (p *Pipeline) dispatch(ctx context.Context) {
	for {
		if !p.awaitSlot(ctx) {
			return
		}
		u := p.next(ctx)
		if u == nil {
			return
		}
		isolated := p.count(u)
		p.units <- call{u, isolated} // a worker is free, since we hold its slot
	}
}

// call is a unit on its way to a worker.
type call struct {
	unit *unit
	// isolated is set if the unit holds one object that travels alone.
	isolated bool
}

// count reports whether the unit is isolated, and counts it then among the isolated calls under way.
func (p *Pipeline) count(u *unit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u.alone() {
		p.isolatedCalls++
		return true
	}
	return false
}

// mayIsolate reports whether another isolated record may be sent: at most half of the calls are for objects that fail, so
// that a sink which hangs on them still takes the others.
func (p *Pipeline) mayIsolate() bool {
	return p.isolatedCalls < max(1, p.options.Limits.Concurrency/2)
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

// next waits for a unit that may be sent; nil when ctx ends.
func (p *Pipeline) next(ctx context.Context) *unit {
	timer := time.NewTimer(beatInterval)
	defer timer.Stop()
	for ctx.Err() == nil {
		u, wait := p.pick()
		if u != nil && !u.probe && u.tries == 0 {
			p.linger(ctx, u)
		}
		if u != nil && len(u.items) > 0 {
			return u
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
func (p *Pipeline) pick() (*unit, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.beat = now
	if p.gate.closed {
		return p.pickProbe(now)
	}
	wait := beatInterval
	for n, u := range p.retries {
		if d := u.due.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		p.retries = append(p.retries[:n:n], p.retries[n+1:]...)
		return u, 0
	}
	u := newUnit()
	if len(p.backlog.failing) > 0 {
		// The oldest may be refused as those that fail are. Every second unit takes the newest, so that the others need not
		// wait until all of these were tried.
		if p.newestNext = !p.newestNext; p.newestNext {
			u.order = newestFirst
		}
	}
	p.fill(u, p.options.Limits.MaxRecords)
	if len(u.items) == 0 {
		u.recycle()
		return nil, wait
	}
	return u, 0
}

// pickProbe returns one record of a ready object, or a unit that failed, in turn. An object that was not tried goes first,
// the newest of them: behind a thousand objects that the sink refuses it would wait for an hour.
func (p *Pipeline) pickProbe(now time.Time) (*unit, time.Duration) {
	if d := p.gate.next.Sub(now); d > 0 {
		return nil, d
	}
	p.gate.fresh = !p.gate.fresh
	u := newUnit()
	u.order = untriedFirst
	if p.gate.fresh || len(p.retries) == 0 {
		p.fill(u, 1)
	}
	if len(u.items) == 0 {
		u.recycle()
		if len(p.retries) == 0 {
			return nil, beatInterval
		}
		u, p.retries = p.retries[0], p.retries[1:]
	}
	u.probe = true
	p.gate.probed(now)
	return u, 0
}

const (
	// handful is how many objects wake a dispatcher that lingers: to be woken for each costs more than to encode it.
	handful = 16
	// glance is how often it looks nevertheless, since a few objects may fill a batch.
	glance = 5 * time.Millisecond
)

// linger fills a unit that has room until it is full or Limits.Linger is over.
func (p *Pipeline) linger(ctx context.Context, u *unit) {
	limits := p.options.Limits
	if limits.Linger <= 0 || p.full(u) {
		return
	}
	end := time.Now().Add(limits.Linger)
	timer := time.NewTimer(min(glance, limits.Linger))
	defer timer.Stop()
	defer p.signal() // a wake-up that was taken, or not given, here may have been meant for next
	defer p.enough.Store(0)
	for over := false; !over && !p.full(u); {
		p.enough.Store(int64(min(handful, limits.MaxRecords-len(u.records))))
		select {
		case <-p.wake:
		case <-timer.C:
			left := time.Until(end)
			over = left <= 0
			timer.Reset(min(glance, max(left, 0)))
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		p.fill(u, limits.MaxRecords)
		p.mu.Unlock()
	}
}

func (p *Pipeline) full(u *unit) bool {
	return u.closed || len(u.records) >= p.options.Limits.MaxRecords || u.bytes >= p.options.Limits.MaxBytes || u.alone()
}

// alone reports whether the unit holds something that must not have company.
func (u *unit) alone() bool {
	return len(u.objects) > 0 && u.objects[len(u.objects)-1].suspect
}

// nextObject returns the ready object that the unit takes next, nil if there is none. Objects that travel alone wait aside
// while as many calls as may be are for such objects. A unit that has one comes between others. p.mu is held.
func (p *Pipeline) nextObject(u *unit) *object {
	first := len(u.records) == 0
	if p.isolatedNext = first && u.order != untriedFirst && !p.isolatedNext; p.isolatedNext {
		if o := p.takeIsolated(); o != nil {
			return o
		}
	}
	for {
		o := p.backlog.take(u.order)
		switch {
		case o == nil && first:
			return p.takeIsolated()
		case o != nil && o.suspect && !p.mayIsolate():
			p.isolated = append(p.isolated, o)
		default:
			return o
		}
	}
}

// takeIsolated returns an object that waited aside, nil if there is none or it has to go on waiting.
func (p *Pipeline) takeIsolated() *object {
	if len(p.isolated) == 0 || !p.mayIsolate() {
		return nil
	}
	o := p.isolated[0]
	p.isolated[0] = nil
	p.isolated = p.isolated[1:]
	return o
}

// fill takes ready objects from the queue into the unit, up to most records. What does not fit begins the next one. p.mu
// is held.
func (p *Pipeline) fill(u *unit, most int) {
	limits := p.options.Limits
	for len(u.records) < most && u.bytes < limits.MaxBytes && !u.closed && !u.alone() {
		o := p.nextObject(u)
		if o == nil {
			return
		}
		if o.suspect && len(u.records) > 0 {
			u.closed, p.backlog.first = true, o
			return
		}
		if len(o.items) == 0 {
			p.unpark(o)
			continue
		}
		taken := 0
		for _, i := range o.items {
			if len(u.records) == most || taken > 0 && (limits.OnePerKey || o.suspect) {
				break
			}
			record, arena, err := p.encoder.encodeTo(u.arena, i)
			if err != nil && i.err == nil {
				i.err = err
			}
			grown := u.bytes + int64(record.Size())
			if grown > limits.MaxBytes && len(u.records) > 0 {
				break
			}
			u.bytes, u.arena = grown, arena
			u.objects, u.items, u.records = append(u.objects, o), append(u.items, i), append(u.records, record)
			taken++
		}
		o.travels = taken > 0
		if taken == 0 { // too large for what is left
			u.closed, p.backlog.first = true, o
			return
		}
	}
}
