package flow

import (
	"iter"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Options make a scheduler.
type Options struct {
	// Records bounds a batch.
	Records int
	// OnePerObject is set if a batch may hold one record of each object only.
	OnePerObject bool
	// Calls is how many calls may be under way.
	Calls int
	// Share is the pipeline's share of the sink's slots.
	Share *Share
	// Initial and Max are the delays after a failure: each is twice the one before.
	Initial, Max time.Duration
	// Attempts after which a record becomes a dead letter; 0 is no bound.
	Attempts int
	// Random returns numbers in [0, 1), for the jitter of delays.
	Random func() float64
}

// Item is a record that waits.
type Item struct {
	// Ref is its object, and Flow the name of its flow.
	Ref  delta.Ref
	Flow string
	// Attempts is how often it failed by itself, and Failed when it did so first.
	Attempts int
	Failed   time.Time
	// Value is the caller's.
	Value any

	refused time.Time // when the sink first refused it for good, if it waits to see whether the sink works
}

// object is an object with records that wait. It is in a lane of its flow, in a batch, or waits for the end of a delay; never in two of
// them, so that no two batches hold it.
type object struct {
	flow       *flow
	lane       node[object]
	items      []*Item // in order
	first      [1]*Item
	held       int // how many of items the batch holds, or the group
	sent       bool
	since      time.Time
	tries      int       // how often it failed by itself since something of it was delivered
	failsSince time.Time // when it failed first since then, by itself or not
	failed     time.Time // when it last failed by itself
	// failing is set while it counts in flow.failing: something of it failed since something was last delivered.
	failing bool
	// alone is set if it failed alone.
	alone bool
}

// Scheduler decides what is sent next. It knows no time and starts nothing: its caller guards it, says what time it is, makes the calls, and
// says how they ended.
type Scheduler struct {
	options Options
	objects map[delta.Ref]*object
	flows   map[string]*flow
	all     list[flow]
	idle    list[flow] // those without objects, the one that became so first in front
	ring    list[flow] // those of which fresh objects may share a batch, in turn
	// trustedFlows and untrustedFlows are those of which something may be sent apart, in turn.
	trustedFlows, untrustedFlows list[flow]

	lastUntrusted bool     // the last flow that was sent apart was untrusted
	groups        []*Batch // what failed together, of several flows
	timers        timerHeap
	calls         int
	apartCalls    int    // of calls, those sent apart, and those of which letters are written, which have given their slot back
	batch         uint64 // the number of the last batch
	filling       uint64 // the number of the shared batch that may still be filled
	lastApart     bool   // what is sent apart came before shared batches the last time

	sink sinkState
	full bool
}

// New returns a scheduler.
func New(options Options) *Scheduler {
	s := &Scheduler{options: options, objects: map[delta.Ref]*object{}, flows: map[string]*flow{}}
	s.sink.pause = options.Initial
	return s
}

// Add adds a record that waits, behind those of its object. It reports whether the object fails; see [Scheduler.Fails].
func (s *Scheduler) Add(i *Item, now time.Time) (fails bool) {
	o := s.objects[i.Ref]
	if o != nil {
		o.items = append(o.items, i)
		return o.failing
	}
	o = &object{flow: s.flow(i.Flow), since: now}
	o.lane.value = o
	o.first[0] = i
	o.items = o.first[:]
	s.objects[i.Ref] = o
	o.flow.objects++
	o.flow.idle.leave()
	s.ready(o, now)
	return false
}

// ready puts an object into the lane of its flow: alone if it failed alone, else fresh.
func (s *Scheduler) ready(o *object, now time.Time) {
	if o.alone {
		o.flow.alone.pushBack(&o.lane)
	} else {
		o.flow.fresh.pushBack(&o.lane)
	}
	s.place(o.flow, now)
}

// SetFull says whether sources wait for memory. While they do, a record that the sink refuses for good becomes a dead letter, even if the
// sink refuses all records. For no other record may come that would show that the sink works.
func (s *Scheduler) SetFull(full bool) { s.full = full }

// Batch is what one call sends.
type Batch struct {
	// Items are the records. Those of one object are in order and next to each other.
	Items []*Item
	// Outcomes says what becomes of each, once Judge was called.
	Outcomes []Outcome

	objects     []*object
	flows       []*flow
	number      uint64
	class       class
	countsApart bool // in apartCalls
	alone       bool // it holds one record of an object that failed alone
	retry       bool // it holds objects of company or alone
	probe       bool
	full        bool
	// round is 0 for a batch that is sent first, 1 for one that is sent again as it was, and more for a part of one.
	round int
	fault fault
	delay time.Duration // that the sink requested
	slow  bool
}

// Next returns a batch that may be sent now. If there is none, it returns nil and the time at which to ask again, or the zero time if only an
// event can change that. fits adds a record to the caller's batch, or reports that there is no room for it; for the first record there is.
func (s *Scheduler) Next(now time.Time, fits func(*Item) bool) (b *Batch, wake time.Time) {
	s.fire(now)
	s.filling = 0
	if s.calls < s.options.Calls {
		b, wake = s.next(now, fits)
	}
	if b != nil {
		s.calls++
		s.sink.called = now
		s.countApart(b, b.class != shared)
		return b, time.Time{}
	}
	if len(s.timers) > 0 && (wake.IsZero() || s.timers[0].at.Before(wake)) {
		wake = s.timers[0].at
	}
	return nil, wake
}

// countApart counts a call that is sent apart, or of which letters are written: those may hang as well.
func (s *Scheduler) countApart(b *Batch, isApart bool) {
	if isApart && !b.countsApart {
		b.countsApart = true
		s.apartCalls++
	}
}

func (s *Scheduler) next(now time.Time, fits func(*Item) bool) (b *Batch, wake time.Time) {
	waits := false // for a slot
	switch {
	case s.Away(now):
		b, wake, waits = s.nextProbe(now, fits)
	case s.sink.surprises >= awayAfter && now.Sub(s.sink.called) < hurryPause:
		wake = s.sink.called.Add(hurryPause)
	default:
		first, second := s.nextShared, s.nextApart
		if s.lastApart = !s.lastApart; s.lastApart {
			first, second = second, first
		}
		if b, waits = first(now, fits); b == nil {
			var secondWaits bool
			b, secondWaits = second(now, fits)
			waits = waits || secondWaits
		}
	}
	if b == nil && !waits {
		s.options.Share.stopWaiting()
	}
	return b, wake
}

// nextShared returns a batch of the flows that are well, and whether there is something to send and no slot.
func (s *Scheduler) nextShared(now time.Time, fits func(*Item) bool) (*Batch, bool) {
	if !s.pruneRing(now) {
		return nil, false
	}
	if !s.options.Share.take(shared) {
		return nil, true
	}
	b := s.newBatch(shared)
	s.filling = b.number
	s.fillShared(b, now, fits)
	return b, false
}

// nextApart returns a batch of a group of several flows, or of the flow whose turn it is to be sent apart, and whether there is something to send and no
// slot.
func (s *Scheduler) nextApart(now time.Time, fits func(*Item) bool) (*Batch, bool) {
	if s.apartCalls >= max(1, s.options.Calls*3/4) {
		return nil, false
	}
	if len(s.groups) > 0 {
		if !s.options.Share.take(trusted) {
			return nil, true
		}
		b := s.groups[0]
		s.groups = s.groups[1:]
		return s.refill(b, trusted, fits, now), false
	}
	f, l, c := s.nextFlow(now)
	if f == nil {
		return nil, false
	}
	if !s.options.Share.take(c) {
		return nil, true
	}
	s.lastUntrusted = c == untrusted
	return s.takeLane(f, l, c, now, fits), false
}

// nextFlow returns the flow that is next to be sent apart, the lane, and the class of its call. Trusted flows and others take turns, as far as the
// bound on the latter allows.
func (s *Scheduler) nextFlow(now time.Time) (*flow, lane, class) {
	other, lane := s.firstOf(&s.untrustedFlows, now) // first: some may be trusted meanwhile
	f, l := s.firstOf(&s.trustedFlows, now)
	if other != nil && (f == nil || !s.lastUntrusted && s.options.Share.hasRoom(untrusted)) {
		return other, lane, untrusted
	}
	return f, l, trusted
}

// firstOf returns the first flow of a list that has something to send, and the lane whose turn it is.
func (s *Scheduler) firstOf(list *list[flow], now time.Time) (*flow, lane) {
	var next *node[flow]
	for n := list.first; n != nil; n = next {
		next = n.next
		f := n.value
		l := f.nextLane(s, now)
		if l >= 0 && s.trusted(f, now) == (list == &s.trustedFlows) {
			return f, l
		}
		f.queued.leave() // time has passed
		s.place(f, now)
	}
	return nil, -1
}

// takeLane makes a batch of the lane of a flow whose turn it is. The flow's own turn ends.
func (s *Scheduler) takeLane(f *flow, l lane, c class, now time.Time, fits func(*Item) bool) *Batch {
	f.turn = (l + 1) % lanes
	f.queued.leave()
	if l == company {
		b := f.company[0]
		f.company = f.company[1:]
		return s.refill(b, c, fits, now)
	}
	b := s.newBatch(c)
	b.alone = l == alone
	b.retry = b.alone
	s.join(b, f)
	if b.alone {
		o := f.alone.first.value
		o.lane.leave()
		s.put(b, o, fits)
	} else {
		s.fillFresh(b, f, s.options.Records, fits)
	}
	s.place(f, now)
	return b
}

// Fill adds more to a batch that is not sent yet, and reports whether it is full. One that is sent apart does not wait for more.
func (s *Scheduler) Fill(b *Batch, now time.Time, fits func(*Item) bool) (full bool) {
	if b.class == shared {
		s.fillShared(b, now, fits)
	}
	return b.full || b.class != shared
}

// fillShared takes objects of the flows that are not troubled, in turn.
func (s *Scheduler) fillShared(b *Batch, now time.Time, fits func(*Item) bool) {
	for !b.full && s.pruneRing(now) {
		f := s.ring.first.value
		before := len(b.Items)
		s.fillFresh(b, f, before+max(1, (s.options.Records-before)/s.ring.length), fits)
		if len(b.Items) == before { // its first object does not fit; it stays in front, and begins the next batch
			return
		}
		f.ring.leave()
		s.join(b, f)
		s.place(f, now)
	}
}

// pruneRing takes flows out of the front of the ring that do not belong there any more, since time has passed. It reports whether one is left.
func (s *Scheduler) pruneRing(now time.Time) bool {
	for s.ring.length > 0 {
		f := s.ring.first.value
		if !f.troubled(now) && f.mayCall(s, now) {
			return true
		}
		f.ring.leave()
		s.place(f, now)
	}
	return false
}

// fillFresh takes objects of one flow, until the batch holds so many records.
func (s *Scheduler) fillFresh(b *Batch, f *flow, most int, fits func(*Item) bool) {
	for !b.full && f.fresh.length > 0 && len(b.Items) < most {
		n := f.fresh.first
		if !s.put(b, n.value, fits) {
			return
		}
		n.leave()
	}
}

// put adds the first records of an object to a batch, and reports whether there was room for one.
func (s *Scheduler) put(b *Batch, o *object, fits func(*Item) bool) bool {
	most := len(o.items)
	if s.options.OnePerObject || b.probe || o.tries > 0 { // the records behind one that fails only take room
		most = 1
	}
	return s.putHeld(b, o, most, fits)
}

func (s *Scheduler) putHeld(b *Batch, o *object, most int, fits func(*Item) bool) bool {
	o.held = 0
	for o.held < most && len(b.Items) < s.options.Records && fits(o.items[o.held]) {
		b.Items = append(b.Items, o.items[o.held])
		o.held++
	}
	b.full = b.full || b.alone || b.probe || o.held < most || len(b.Items) >= s.options.Records
	if o.held == 0 {
		return false
	}
	o.sent = true
	b.objects = append(b.objects, o)
	return true
}

// refill makes a batch of a group. What does not fit becomes another.
func (s *Scheduler) refill(group *Batch, c class, fits func(*Item) bool, now time.Time) *Batch {
	b := s.newBatch(c)
	b.round, b.retry = group.round, true
	for n, o := range group.objects {
		held := o.held
		if !s.putHeld(b, o, held, fits) {
			o.held = held
			s.regroup(group.objects[n:], group.round, now, 0)
			break
		}
		s.join(b, o.flow)
	}
	for _, f := range b.flows {
		s.place(f, now)
	}
	return b
}

func (s *Scheduler) newBatch(c class) *Batch {
	s.batch++
	return &Batch{number: s.batch, class: c}
}

// join counts a call of a flow.
func (s *Scheduler) join(b *Batch, f *flow) {
	if f.batch == b.number {
		return
	}
	f.batch = b.number
	f.calls++
	if b.retry {
		f.retries++
	}
	b.flows = append(b.flows, f)
}

// Waiting returns the records of an object that wait, in order, and whether a batch holds some of them.
func (s *Scheduler) Waiting(ref delta.Ref) (items []*Item, sent bool) {
	o := s.objects[ref]
	if o == nil {
		return nil, false
	}
	return o.items, o.sent
}

// Objects returns the records of each object that waits, in order.
func (s *Scheduler) Objects() iter.Seq[[]*Item] {
	return func(yield func([]*Item) bool) {
		for _, o := range s.objects {
			if !yield(o.items) {
				return
			}
		}
	}
}

// Fails reports whether an object fails: a record of it has failed since the last delivery of one.
func (s *Scheduler) Fails(ref delta.Ref) bool {
	o := s.objects[ref]
	return o != nil && o.failing
}

// Failing returns how many objects of a flow fail.
func (s *Scheduler) Failing(flow string) int {
	f := s.flows[flow]
	if f == nil {
		return 0
	}
	return f.failing
}
