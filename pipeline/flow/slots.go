package flow

import (
	"context"
	"maps"
	"sync"
	"time"
)

// class is what a call is, for the bounds on calls.
type class int

const (
	shared    class = iota // with fresh objects of flows that are well
	trusted                // apart: of a flow of which something was delivered lately, or a group of several flows
	untrusted              // apart: of a flow of which nothing was delivered lately
)

// Slots bounds the calls of a sink, which several pipelines may share. Calls that are sent apart have at most three quarters of the slots, and
// the untrusted ones have at most half of the slots: the sink may hang on such calls, for all pipelines at once. The
// last free slot is kept for a pipeline that has none. Of several pipelines that wait, the one that has the fewest slots is next, and of two with as
// many the one that waits for longer.
type Slots struct {
	mu             sync.Mutex // guards what follows, and the shares
	total          int
	taken          int
	apartTaken     int // of taken, those that are not of shared batches
	untrustedTaken int // of these, the untrusted ones
	shares         []*Share
	served         uint64
	// delivered is when something of a flow was last delivered, by any share. It is empty if there is one only. sweep is its length at which those of
	// which nothing was delivered lately are dropped.
	delivered map[string]time.Time
	sweep     int
}

// NewSlots returns n free slots.
func NewSlots(n int) *Slots { return &Slots{total: n, delivered: map[string]time.Time{}} }

// Share is the slots of one pipeline. Its methods may be called from several goroutines.
type Share struct {
	slots   *Slots
	held    int
	served  uint64 // when it last took a slot, as a number
	waiting bool   // a call of it waits for a slot
	class   class
	wake    func()
}

// Share returns the share of one more pipeline. wake is called when there may be a slot for a scheduler that found none. It must not block, and
// not call back. It is nil for a share without a scheduler.
func (s *Slots) Share(wake func()) *Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	share := &Share{slots: s, wake: wake}
	s.shares = append(s.shares, share)
	return share
}

// take takes a slot, or reports false and has the scheduler wait for one.
func (s *Share) take(c class) bool {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	took := s.slots.take(s, c)
	s.waiting, s.class = !took, c
	if took {
		s.slots.wakeWaiting() // it may be the turn of others now
	}
	return took
}

// give gives a slot back.
func (s *Share) give(c class) {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	s.slots.count(s, c, -1)
	s.slots.wakeWaiting()
}

// stopWaiting is called by a scheduler that has nothing to send.
func (s *Share) stopWaiting() {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.waiting {
		s.waiting = false
		s.slots.wakeWaiting()
	}
}

// acquirePoll is how often Acquire looks for a slot.
const acquirePoll = 10 * time.Millisecond

// Acquire waits for a slot, for a call that no scheduler chose. It fails only if ctx ends before. A share with a scheduler does not use it. A nil
// share has no bound.
func (s *Share) Acquire(ctx context.Context) error {
	for s != nil && !s.take(shared) {
		select {
		case <-time.After(acquirePoll):
		case <-ctx.Done():
			s.stopWaiting()
			return ctx.Err()
		}
	}
	return nil
}

// Release gives a slot back that Acquire took.
func (s *Share) Release() {
	if s != nil {
		s.give(shared)
	}
}

// noteDelivered notes of which flows something was delivered now.
func (s *Share) noteDelivered(flows []*flow, now time.Time) {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if len(s.slots.shares) == 1 { // the flows know it themselves
		return
	}
	for _, f := range flows {
		if f.delivered.Equal(now) {
			s.slots.delivered[f.name] = now
		}
	}
	if len(s.slots.delivered) > s.slots.sweep {
		maps.DeleteFunc(s.slots.delivered, func(_ string, at time.Time) bool { return !lately(at, now) })
		s.slots.sweep = max(maxIdle, 2*len(s.slots.delivered))
	}
}

// lately reports whether something of a flow was delivered lately.
func (s *Share) lately(flow string, now time.Time) bool {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	return lately(s.slots.delivered[flow], now)
}

// hasRoom reports whether there is a slot for a call.
func (s *Share) hasRoom(c class) bool {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	return s.slots.room(s, c)
}

func (s *Slots) take(share *Share, c class) bool {
	if !s.room(share, c) {
		return false
	}
	s.count(share, c, 1)
	s.served++
	share.served = s.served
	return true
}

func (s *Slots) count(share *Share, c class, n int) {
	share.held += n
	s.taken += n
	if c != shared {
		s.apartTaken += n
	}
	if c == untrusted {
		s.untrustedTaken += n
	}
}

// room reports whether a share may take a slot.
func (s *Slots) room(share *Share, c class) bool {
	free := s.total - s.taken
	if free == 0 || !s.allows(c) {
		return false
	}
	before := 0 // those whose turn it is before
	for _, other := range s.shares {
		if other != share && (other.waiting && s.allows(other.class) && other.before(share) || other.held == 0 && share.held > 0 && free == 1) {
			before++
		}
	}
	return free > before
}

// before reports whether a share that waits is before another: it has fewer slots, or as many and took its last one before.
func (s *Share) before(other *Share) bool {
	return s.held < other.held || s.held == other.held && s.served < other.served
}

// allows reports whether the bounds on what is sent apart allow one more.
func (s *Slots) allows(c class) bool {
	return c == shared || s.apartTaken < max(1, s.total*3/4) && (c == trusted || s.untrustedTaken < max(1, s.total/2))
}

// wakeWaiting wakes all that wait. The one with the fewest slots takes one, and others find that it is not their turn.
func (s *Slots) wakeWaiting() {
	for _, share := range s.shares {
		if share.waiting && share.wake != nil {
			share.wake()
		}
	}
}
