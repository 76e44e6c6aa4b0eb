package sinks

import (
	"context"
	"slices"
	"sync"
)

// Slots bounds the Deliver calls under way of a sink that several pipelines share. A free slot goes to the waiting pipeline
// that holds the fewest, and among those to the one that has waited longest. The last free slot is kept for a pipeline that
// holds none: else one whose calls hang would get hold of all slots each time the others have nothing to send.
type Slots struct {
	mu      sync.Mutex // guards what follows, and the shares
	free    int
	shares  int
	holding int      // shares that hold a slot
	waiting []*Share // those with waiters, the one that got a slot last at the end
}

// NewSlots returns n free slots.
func NewSlots(n int) *Slots { return &Slots{free: n} }

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
	waiters []chan struct{} // each closed once it has a slot
}

// Acquire waits for a slot. It fails only if ctx ends before. Call [Share.Release] once after each success.
func (s *Share) Acquire(ctx context.Context) error {
	if s == nil {
		return nil
	}
	mine := s.enter()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	if !s.leave(mine) {
		s.Release() // it came at the same moment
	}
	return ctx.Err()
}

// enter adds a waiter.
func (s *Share) enter() chan struct{} {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	waiter := make(chan struct{})
	s.waiters = append(s.waiters, waiter)
	if len(s.waiters) == 1 {
		s.slots.waiting = append(s.slots.waiting, s)
	}
	s.slots.grant()
	return waiter
}

// leave takes a waiter back, and reports whether it was still waiting.
func (s *Share) leave(waiter chan struct{}) bool {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	n := slices.Index(s.waiters, waiter)
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
func (s *Share) Release() {
	if s == nil {
		return
	}
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.held--; s.held == 0 {
		s.slots.holding--
	}
	s.slots.free++
	s.slots.grant()
}

// grant gives free slots to those whose turn it is.
func (s *Slots) grant() {
	for s.free > 0 && len(s.waiting) > 0 {
		n := 0
		for i, share := range s.waiting {
			if share.held < s.waiting[n].held {
				n = i
			}
		}
		next := s.waiting[n]
		if s.free == 1 && next.held > 0 && s.holding < s.shares {
			return
		}
		s.free--
		if next.held++; next.held == 1 {
			s.holding++
		}
		close(next.waiters[0])
		next.waiters = next.waiters[1:]
		s.waiting = slices.Delete(s.waiting, n, n+1)
		if len(next.waiters) > 0 {
			s.waiting = append(s.waiting, next)
		}
	}
}
