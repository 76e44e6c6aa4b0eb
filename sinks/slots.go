package sinks

import (
	"context"
	"slices"
	"sync"
)

// Slots bounds the Deliver calls under way of a sink that several pipelines share. A free slot goes to the waiting pipeline
// that holds the fewest, and among those to the one that has waited longest. The last free slot is kept for a pipeline that
// holds none: else one whose calls hang would get hold of all slots each time the others have nothing to send. Of the rest, a quarter is not
// for suspect namespaces: each pipeline bounds its own calls for these, and all of them may have the same.
type Slots struct {
	mu      sync.Mutex // guards what follows, and the shares
	count   int
	free    int
	suspect PerNamespace // the slots held for suspect namespaces
	shares  int
	holding int      // shares that hold a slot
	waiting []*Share // those with waiters, the one that got a slot last at the end
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
	return &Share{slots: s}
}

// Share is the slots of one pipeline. Its methods may be called from several goroutines. A nil *Share has no bound.
type Share struct {
	slots   *Slots
	held    int
	waiters []waiter
}

// SlotFor is what a slot is for: any call, or one with records of a namespace that is suspect.
type SlotFor struct {
	Suspect   bool
	Namespace string
}

type waiter struct {
	granted chan struct{} // closed once it has a slot
	of      SlotFor
}

// Acquire waits for a slot. It fails only if ctx ends before. Call [Share.Release] with the same once after each success.
func (s *Share) Acquire(ctx context.Context, of SlotFor) error {
	if s == nil {
		return nil
	}
	mine := s.enter(of)
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	if !s.leave(mine) {
		s.Release(of) // it came at the same moment
	}
	return ctx.Err()
}

// enter adds a waiter.
func (s *Share) enter(of SlotFor) chan struct{} {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	granted := make(chan struct{})
	s.waiters = append(s.waiters, waiter{granted, of})
	if len(s.waiters) == 1 {
		s.slots.waiting = append(s.slots.waiting, s)
	}
	s.slots.grant()
	return granted
}

// leave takes a waiter back, and reports whether it was still waiting.
func (s *Share) leave(granted chan struct{}) bool {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	n := slices.IndexFunc(s.waiters, func(w waiter) bool { return w.granted == granted })
	if n < 0 {
		return false
	}
	s.waiters = slices.Delete(s.waiters, n, n+1)
	if len(s.waiters) == 0 {
		s.slots.waiting = slices.DeleteFunc(s.slots.waiting, func(other *Share) bool { return other == s })
	}
	return true
}

// Release gives a slot back.
func (s *Share) Release(of SlotFor) {
	if s == nil {
		return
	}
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.held--; s.held == 0 {
		s.slots.holding--
	}
	s.slots.free++
	if of.Suspect {
		s.slots.suspect.Add(of.Namespace, -1)
	}
	s.slots.grant()
}

// next returns the number of the first waiter that may have a slot; -1 if there is none.
func (s *Share) next() int {
	kept := min(1, s.slots.shares-1)
	return slices.IndexFunc(s.waiters, func(w waiter) bool {
		return !w.of.Suspect || s.slots.suspect.Room(w.of.Namespace, (s.slots.count-kept)*3/4)
	})
}

// grant gives free slots to those whose turn it is.
func (s *Slots) grant() {
	for s.free > 0 {
		turn, first := -1, -1
		for n, share := range s.waiting {
			if w := share.next(); w >= 0 && (turn < 0 || share.held < s.waiting[turn].held) {
				turn, first = n, w
			}
		}
		if turn < 0 {
			return
		}
		next := s.waiting[turn]
		if s.free == 1 && next.held > 0 && s.holding < s.shares {
			return
		}
		s.free--
		if next.held++; next.held == 1 {
			s.holding++
		}
		granted := next.waiters[first]
		if granted.of.Suspect {
			s.suspect.Add(granted.of.Namespace, 1)
		}
		close(granted.granted)
		next.waiters = slices.Delete(next.waiters, first, first+1)
		s.waiting = slices.Delete(s.waiting, turn, turn+1)
		if len(next.waiters) > 0 {
			s.waiting = append(s.waiting, next)
		}
	}
}
