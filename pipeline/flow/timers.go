package flow

import (
	"container/heap"
	"time"
)

// timer is the end of a delay, of an object, of a group or of a flow.
type timer struct {
	at     time.Time
	object *object
	group  *Batch
	flow   *flow
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
		switch t := heap.Pop(&s.timers).(timer); { //nolint:forcetypeassert // only of timers
		case t.flow != nil:
			if t.flow.timer.Equal(t.at) {
				t.flow.timer = time.Time{}
			}
			s.place(t.flow, now)
		case t.group != nil:
			s.groupReady(t.group, now)
		default:
			if o := t.object; o.alone {
				o.flow.alone.pushBack(&o.lane)
				s.place(o.flow, now)
			} else {
				s.ready(o, now)
			}
		}
	}
}

// after starts a delay, with some jitter.
func (s *Scheduler) after(t timer, now time.Time, delay time.Duration) {
	t.at = now.Add(s.jitter(delay))
	heap.Push(&s.timers, t)
}

func (s *Scheduler) jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*s.options.Random()))
}
