package sinks

import (
	"context"
	"slices"
	"sync"
)

// Slots bounds the Deliver calls under way of a sink that several pipelines share. A free slot goes to the waiting pipeline
// that holds the fewest, and among those to the one that has waited longest. The last free slot is kept for a pipeline that
// holds none: else a pipeline whose calls hang would get all slots when the others have nothing to send. At most three
// quarters of the rest are for doubtful calls, which each pipeline has in a line of their own: it bounds its calls for a namespace
// on which the sink hangs, but all pipelines may have that namespace.
type Slots struct {
	mu       sync.Mutex // guards what follows, and the shares
	count    int
	free     int
	shares   int
	holding  int // shares that hold a slot
	doubtful PerNamespace
	waiting  []*line // those with waiters, the one that got a slot last at the end
}

// NewSlots returns n free slots.
func NewSlots(n int) *Slots { return &Slots{count: n, free: n} }

// Share returns the share of one more pipeline; nil if s is nil.
func (s *Slots) Share() *Share {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares++
	share := &Share{slots: s}
	share.sure.share, share.doubtful.share = share, share
	return share
}

// Share is the slots of one pipeline. Its methods may be called from several goroutines. A nil *Share has no bound.
type Share struct {
	slots          *Slots
	held           int
	sure, doubtful line
}

// Call is what a slot is for. It is doubtful if the sink may hang on it: nothing of its namespace got through lately, or its record failed.
type Call struct {
	Namespace string
	Doubtful  bool
}

// line is what waits for slots of a share.
type line struct {
	share   *Share
	held    int
	waiters []waiter
}

type waiter struct {
	call    Call
	granted chan struct{} // closed once it has a slot
}

func (s *Share) line(call Call) *line {
	if call.Doubtful {
		return &s.doubtful
	}
	return &s.sure
}

// Acquire waits for a slot. It fails only if ctx ends before. Call [Share.Release] for the same call once after each success.
func (s *Share) Acquire(ctx context.Context, call Call) error {
	if s == nil {
		return nil
	}
	granted := s.enter(call)
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	if !s.leave(call, granted) {
		s.Release(call) // it came at the same moment
	}
	return ctx.Err()
}

// enter adds a waiter.
func (s *Share) enter(call Call) (granted chan struct{}) {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	l := s.line(call)
	granted = make(chan struct{})
	l.waiters = append(l.waiters, waiter{call, granted})
	if len(l.waiters) == 1 {
		s.slots.waiting = append(s.slots.waiting, l)
	}
	s.slots.grant()
	return granted
}

// leave takes a waiter back, and reports whether it was still waiting.
func (s *Share) leave(call Call, granted chan struct{}) bool {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	l := s.line(call)
	n := slices.IndexFunc(l.waiters, func(w waiter) bool { return w.granted == granted })
	if n < 0 {
		return false
	}
	l.waiters = slices.Delete(l.waiters, n, n+1)
	if len(l.waiters) == 0 {
		s.slots.waiting = slices.DeleteFunc(s.slots.waiting, func(other *line) bool { return other == l })
	}
	return true
}

// Release gives the slot of a call back.
func (s *Share) Release(call Call) {
	if s == nil {
		return
	}
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	s.slots.hold(s.line(call), call, -1)
	s.slots.grant()
}

// hold counts a slot that a call takes, or with -1 gives back.
func (s *Slots) hold(l *line, call Call, n int) {
	if l.share.held == 0 {
		s.holding++
	}
	l.share.held += n
	if l.share.held == 0 {
		s.holding--
	}
	l.held += n
	s.free -= n
	if call.Doubtful {
		s.doubtful.Add(call.Namespace, n)
	}
}

// next returns the number of the first waiter that may have a slot; -1 if there is none.
func (l *line) next() int {
	s := l.share.slots
	return slices.IndexFunc(l.waiters, func(w waiter) bool {
		return !w.call.Doubtful || s.doubtful.Room(w.call.Namespace, (s.count-min(1, s.shares-1))*3/4)
	})
}

// grant gives free slots to those whose turn it is.
func (s *Slots) grant() {
	for s.free > 0 {
		turn, first := -1, -1
		for n, l := range s.waiting {
			if s.free == 1 && l.share.held > 0 && s.holding < s.shares {
				continue
			}
			if w := l.next(); w >= 0 && (turn < 0 || l.held < s.waiting[turn].held) {
				turn, first = n, w
			}
		}
		if turn < 0 {
			return
		}
		l := s.waiting[turn]
		granted := l.waiters[first]
		s.hold(l, granted.call, 1)
		close(granted.granted)
		l.waiters = slices.Delete(l.waiters, first, first+1)
		s.waiting = slices.Delete(s.waiting, turn, turn+1)
		if len(l.waiters) > 0 {
			s.waiting = append(s.waiting, l)
		}
	}
}
