package flow

import (
	"container/heap"
	"time"
)

// timer is the end of a delay, and what is done then.
type timer struct {
	at time.Time
	do func(now time.Time)
}

type timerHeap []timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(t any)        { *h = append(*h, t.(timer)) } //nolint:forcetypeassert // only of timers
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = timer{}
	*h = (*h)[:last]
	return t
}

// fire ends the delays that are over.
func (s *Scheduler) fire(now time.Time) {
	for len(s.timers) > 0 && !s.timers[0].at.After(now) {
		heap.Pop(&s.timers).(timer).do(now) //nolint:forcetypeassert // only of timers
	}
}

// after has something done after a delay, with some jitter.
func (s *Scheduler) after(now time.Time, delay time.Duration, do func(now time.Time)) {
	heap.Push(&s.timers, timer{now.Add(s.jitter(delay)), do})
}

func (s *Scheduler) jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*s.options.Random()))
}
