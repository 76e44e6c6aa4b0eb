package flow

import "time"

const (
	// awayAfter is how many calls in a row fail, and awayFor how long nothing is delivered, before the sink counts as away.
	awayAfter = 10
	awayFor   = time.Second
	// hurryPause is how long to wait between two calls after awayAfter of trusted flows have failed, before the sink counts as away.
	hurryPause = 100 * time.Millisecond
	// maxPause is the longest pause between two records while the sink is away.
	maxPause = 1500 * time.Millisecond
)

// sinkState is what is known of the sink as a whole.
type sinkState struct {
	failures  int       // calls, or objects refused for good, since the last success
	surprises int       // of failures, the calls that held something of a trusted flow
	delivered time.Time // when something was last delivered
	pause     time.Duration
	probeAt   time.Time // when the next record may be sent while the sink is away
	called    time.Time // when the last call began
	turn      int       // whose turn it was last; see nextProbed
}

// Away reports whether the sink as a whole counts as away.
func (s *Scheduler) Away(now time.Time) bool {
	return s.sink.failures >= awayAfter && now.Sub(s.sink.delivered) > awayFor
}

// nextProbe returns a batch of one record, or when one may be sent. waits is set if there is a record, and no slot.
func (s *Scheduler) nextProbe(now time.Time, fits func(*Item) bool) (b *Batch, at time.Time, waits bool) {
	if now.Before(s.sink.probeAt) {
		return nil, s.sink.probeAt, false
	}
	for _, group := range s.groups { // of several flows
		for _, objects := range byFlow(group.objects) {
			s.regroup(objects, group.round, now, 0)
		}
	}
	s.groups = nil
	f := s.nextProbed(now)
	if f == nil {
		return nil, time.Time{}, false
	}
	c := untrusted
	if s.trusted(f, now) {
		c = trusted
	}
	if !s.options.Share.take(c) {
		return nil, time.Time{}, true
	}
	s.sink.probeAt = now.Add(s.jitter(s.sink.pause))
	f.called = now
	b = s.newBatch(c)
	b.probe = true
	s.join(b, f)
	s.put(b, s.takeProbe(f), fits)
	s.place(f, now)
	return b, time.Time{}, false
}

// nextProbed returns the flow that is next while the sink is away: in turn, the one of which something was delivered last, and the one that was
// called longest ago. Of those that were never called it is, in turn, the one with the newest
// object, and the one that is known for longest.
func (s *Scheduler) nextProbed(now time.Time) *flow {
	s.sink.turn++ // of four, two are for what was delivered last, and two for the newest object: one is for both, as nothing may be delivered yet
	lastDelivered, newest := s.sink.turn%2 == 1, s.sink.turn/2%2 == 1
	var next *flow
	before := func(f, g *flow) bool {
		if lastDelivered && !f.delivered.Equal(g.delivered) {
			return f.delivered.After(g.delivered)
		}
		if !f.called.Equal(g.called) {
			return f.called.Before(g.called)
		}
		return newest && f.newestSince().After(g.newestSince())
	}
	for n := s.all.first; n != nil; n = n.next {
		if f := n.value; f.waits() && !now.Before(f.until) && (next == nil || before(f, next)) {
			next = f
		}
	}
	return next
}

func (f *flow) waits() bool { return f.fresh.length+len(f.company)+f.alone.length > 0 }

func (f *flow) newestSince() time.Time {
	if f.fresh.length == 0 {
		return time.Time{}
	}
	return f.fresh.last.value.since
}

// takeProbe takes one object of a flow, of the lane whose turn it is.
func (s *Scheduler) takeProbe(f *flow) (o *object) {
	for ; o == nil; f.turn++ {
		switch f.turn % lanes {
		case fresh:
			if n := f.fresh.first; n != nil {
				if f.newest = !f.newest; f.newest {
					n = f.fresh.last
				}
				o = n.value
				n.leave()
			}
		case company:
			if len(f.company) > 0 {
				group := f.company[0]
				o = group.objects[0]
				if group.objects = group.objects[1:]; len(group.objects) == 0 {
					f.company = f.company[1:]
				}
			}
		case alone:
			if n := f.alone.first; n != nil {
				o = n.value
				n.leave()
			}
		}
	}
	return o
}
