package flow

import (
	"container/heap"
	"time"
)

// lane is a part of what waits in a flow. The lanes take turns.
type lane int

const (
	fresh   lane = iota // objects that may be sent with any others, if the flow is well
	company             // groups of objects that failed together
	alone               // objects that failed alone
	lanes
)

// flow is what waits of one namespace.
type flow struct {
	name    string
	all     node[flow]
	idle    node[flow]
	ring    node[flow] // in Scheduler.ring, while fresh objects of it may share a batch
	queued  node[flow] // in Scheduler.trustedFlows or untrustedFlows, while something of it may be sent apart
	objects int

	fresh   list[object]
	company []*Batch
	alone   list[object]
	turn    lane // the lane whose turn is next
	newest  bool // the last object that was tried while the sink was away was the newest one

	calls   int    // under way
	retries int    // of these, with objects of company or alone
	batch   uint64 // the number of the last batch that it joined
	// failing counts the objects that fail.
	failing   int
	blamed    time.Time // when a failure was last attributed to it, or when the delay ends that the sink requested
	delivered time.Time // when something of it was last delivered
	called    time.Time // when a call last ended, or last began while the sink was away, that held nothing of other flows
	until     time.Time // before which the sink requested to send nothing
	aloneAt   time.Time // before which no object is sent alone
	timer     time.Time // when place is called again
}

const (
	// probation is how long a flow is troubled after its last failure.
	probation = 10 * time.Second
	// latelyBefore is how long something counts as delivered lately, so that a flow is trusted.
	latelyBefore = time.Minute
	// justNow is how long something counts as delivered just now, so that a flow may have any number of calls.
	justNow = time.Second
	// alonePause is how long no object of a flow is sent alone after one failed.
	alonePause = 50 * time.Millisecond
	// maxIdle is how many flows are remembered that have nothing waiting.
	maxIdle = 1000
)

// flow returns the flow of that name.
func (s *Scheduler) flow(name string) *flow {
	f := s.flows[name]
	if f == nil {
		f = &flow{name: name}
		f.all.value, f.idle.value, f.ring.value, f.queued.value = f, f, f, f
		s.flows[name] = f
		s.all.pushBack(&f.all)
	}
	return f
}

// rest notes that a flow may have nothing waiting, and forgets the flow for which that has been so for longest.
func (s *Scheduler) rest(f *flow) {
	if f.objects > 0 || f.calls > 0 || f.idle.in != nil {
		return
	}
	s.idle.pushBack(&f.idle)
	if s.idle.length > maxIdle {
		f := s.idle.first.value
		f.idle.leave()
		f.all.leave()
		delete(s.flows, f.name)
	}
}

// troubled reports whether all of a flow is sent apart: from when it is blamed until something of it was delivered, and ten seconds have passed.
func (f *flow) troubled(now time.Time) bool {
	return !f.blamed.IsZero() && (now.Sub(f.blamed) < probation || !f.delivered.After(f.blamed))
}

// trusted reports whether something of a flow was delivered lately, by any pipeline of the sink.
func (s *Scheduler) trusted(f *flow, now time.Time) bool {
	return lately(f.delivered, now) || s.options.Share.lately(f.name, now)
}

func lately(delivered, now time.Time) bool {
	return !delivered.IsZero() && now.Sub(delivered) < latelyBefore
}

// mayCall reports whether a flow may have a call more with fresh objects. One that joined the batch that is being filled may have more of it.
func (f *flow) mayCall(s *Scheduler, now time.Time) bool {
	return f.calls-f.retries < s.quarter() || !f.delivered.IsZero() && now.Sub(f.delivered) < justNow || f.batch == s.filling && s.filling > 0
}

func (s *Scheduler) quarter() int { return max(1, s.options.Calls/4) }

// nextLane returns the lane that may be sent apart now; -1 if there is none.
func (f *flow) nextLane(s *Scheduler, now time.Time) lane {
	if now.Before(f.until) {
		return -1
	}
	again := f.retries < s.quarter()
	ready := [lanes]bool{
		fresh:   f.fresh.length > 0 && f.troubled(now) && f.mayCall(s, now),
		company: len(f.company) > 0 && again,
		alone:   f.alone.length > 0 && again && !now.Before(f.aloneAt),
	}
	for n := range lanes {
		if l := (f.turn + n) % lanes; ready[l] {
			return l
		}
	}
	return -1
}

// place puts a flow where it is found when it is its turn.
func (s *Scheduler) place(f *flow, now time.Time) {
	delayed := now.Before(f.until)
	if delayed || f.fresh.length == 0 || f.troubled(now) || !f.mayCall(s, now) {
		f.ring.leave()
	} else if f.ring.in == nil {
		s.ring.pushBack(&f.ring)
	}
	to := &s.untrustedFlows
	if s.trusted(f, now) {
		to = &s.trustedFlows
	}
	if f.nextLane(s, now) < 0 {
		f.queued.leave()
	} else if f.queued.in != to {
		f.queued.leave()
		to.pushBack(&f.queued)
	}
	switch {
	case delayed:
		s.wake(f, f.until)
	case f.alone.length > 0 && now.Before(f.aloneAt):
		s.wake(f, f.aloneAt)
	}
}

// wake has place called again for a flow.
func (s *Scheduler) wake(f *flow, at time.Time) {
	if f.timer.IsZero() || at.Before(f.timer) {
		f.timer = at
		heap.Push(&s.timers, timer{at, func(now time.Time) {
			if f.timer.Equal(at) {
				f.timer = time.Time{}
			}
			s.place(f, now)
		}})
	}
}
