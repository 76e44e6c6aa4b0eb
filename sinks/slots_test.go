package sinks

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlotsTurns has pipelines hold all slots and others wait, one after the other; then slots are given back one by one.
func TestSlotsTurns(t *testing.T) {
	for _, test := range []struct {
		name                      string
		holders, waiters, release string // pipelines, in order
		want                      string // who gets the slots
	}{
		{name: "in order", holders: "aa", waiters: "bcd", release: "aa", want: "bc"},
		{name: "each in turn", holders: "a", waiters: "bbbcc", release: "abcbc", want: "bcbcb"},
		{name: "whoever holds the fewest", holders: "aaaa", waiters: "aaaabbbb", release: "abbaaa", want: "bbbbaa"},
		{name: "the last one is kept for others", holders: "aa", waiters: "aaaab", release: "aaaab", want: "baaa-"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots := NewSlots(len(test.holders))
				shares := map[rune]*Share{}
				for _, name := range test.holders { // of one share: while there is no other, it may hold all slots
					if shares[name] == nil {
						shares[name] = slots.Share()
					}
					if err := shares[name].Acquire(t.Context(), Call{}); err != nil {
						t.Fatal(err)
					}
				}
				for _, name := range test.waiters {
					if shares[name] == nil {
						shares[name] = slots.Share()
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				got := make(chan rune, len(test.waiters))
				for _, name := range test.waiters {
					go func() {
						if shares[name].Acquire(ctx, Call{}) == nil {
							got <- name
						}
					}()
					synctest.Wait()
				}
				order := ""
				for _, name := range test.release {
					shares[name].Release(Call{})
					synctest.Wait()
					select {
					case name := <-got:
						order += string(name)
					default:
						order += "-"
					}
				}
				if order != test.want {
					t.Errorf("got slots for %q, want %q", order, test.want)
				}
			})
		})
	}
}

// TestSlotsAllInUse: the last slot is kept for a pipeline that holds none, and not where each holds one.
func TestSlotsAllInUse(t *testing.T) {
	slots := NewSlots(3)
	a, b := slots.Share(), slots.Share()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, share := range []*Share{a, b, a} {
		if err := share.Acquire(ctx, Call{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSlotsGivenUp ends waits, some in the moment in which they get a slot: no slot is lost, and no more than there are
// are held.
func TestSlotsGivenUp(t *testing.T) {
	const n = 3
	slots := NewSlots(n)
	var held, most, givenUp atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		share := slots.Share()
		for worker := range 8 {
			wg.Go(func() {
				for range 200 {
					ctx, cancel := context.WithCancel(t.Context())
					if worker%2 == 0 {
						ctx, cancel = context.WithTimeout(t.Context(), 50*time.Microsecond)
					}
					switch err := share.Acquire(ctx, Call{}); {
					case err == nil:
						now := held.Add(1)
						for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
						}
						held.Add(-1)
						share.Release(Call{})
					case errors.Is(err, context.DeadlineExceeded):
						givenUp.Add(1)
					default:
						t.Error(err)
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
	if most.Load() > n || slots.free != n || len(slots.waiting) > 0 {
		t.Errorf("held %d at most, %d free at the end, %d waiting; want %d, %d and 0", most.Load(), slots.free, len(slots.waiting), n, n)
	}
	t.Logf("%d waits were given up", givenUp.Load())
}

// Doubtful calls of all pipelines together leave slots to others, and the last of their slots to another namespace. The slot that is kept for
// a pipeline that holds none is given to it, whatever waits before it.
func TestDoubtfulCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got atomic.Int64
		acquire := func(share *Share, call Call) (granted bool) {
			before := got.Load()
			go func() {
				if share.Acquire(ctx, call) == nil {
					got.Add(1)
				}
			}()
			synctest.Wait()
			return got.Load() > before
		}
		slots := NewSlots(8)
		a, b := slots.Share(), slots.Share()
		for n, share := range []*Share{a, b, a, b} {
			if !acquire(share, Call{Namespace: "tenant", Doubtful: true}) {
				t.Fatalf("%d wait", n)
			}
		}
		if acquire(a, Call{Namespace: "tenant", Doubtful: true}) {
			t.Error("one namespace has all slots for doubtful calls")
		}
		if !acquire(b, Call{Namespace: "another", Doubtful: true}) || acquire(b, Call{Namespace: "third", Doubtful: true}) {
			t.Error("another namespace has no slot, or there are six")
		}
		if !acquire(a, Call{}) || !acquire(b, Call{}) || !acquire(b, Call{}) {
			t.Error("a call waits for doubtful ones")
		}

		slots = NewSlots(2)
		a, b = slots.Share(), slots.Share()
		if !acquire(a, Call{Doubtful: true}) || acquire(a, Call{}) || !acquire(b, Call{}) {
			t.Error("the last slot is not kept for the other pipeline, or not given to it")
		}
	})
}
