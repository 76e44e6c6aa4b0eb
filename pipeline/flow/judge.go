package flow

import (
	"slices"
	"time"
)

// Verdict is how a call ended for one record.
type Verdict int

// The verdicts.
const (
	Acknowledged Verdict = iota
	Failed               // may pass
	Refused              // for good: the sink says that it can never take it, which may be wrong
	Unsendable           // we know that it can never be taken: it could not be made, or is larger than the sink takes
	Cancelled            // we ended the call
)

// Result is how a call ended for one record.
type Result struct {
	Verdict Verdict
	// RetryAfter is the delay that the sink requested, of a record that Failed; 0 if it did not.
	RetryAfter time.Duration
}

// Outcome is what becomes of a record.
type Outcome int

// The outcomes.
const (
	Waits     Outcome = iota // and is sent again
	Delivered                // is settled
	Letter                   // becomes a dead letter, and is settled then
)

// fault is what a failure is attributed to.
type fault int

const (
	none     fault = iota
	ours           // the call was cancelled
	record         // each record that failed, by itself
	together       // all that were in the call
	delayed        // the only flow of the call, for which the sink requested a delay
)

// slowCall is how long a call takes at least that counts as slow: it troubles all flows of what fails in it.
const slowCall = time.Second

// Judge says what becomes of each record of a batch whose call has ended, after it took so long. The caller then writes the letters, sets the
// outcome of those that it cannot write to Waits, and calls Done.
func (s *Scheduler) Judge(b *Batch, results []Result, took time.Duration, now time.Time) {
	var count [Cancelled + 1]int
	var after time.Duration
	for _, r := range results {
		count[r.Verdict]++
		after = max(after, r.RetryAfter)
	}
	acknowledged, failed, refused := count[Acknowledged], count[Failed], count[Refused]
	s.countFailures(b, acknowledged > 0, failed+refused > 0, refused, now)
	b.slow = took >= slowCall
	switch {
	case count[Cancelled] > 0:
		b.fault = ours
	case failed+refused == 0:
	case after > 0 && len(b.flows) == 1:
		b.fault, b.delay = delayed, after
	case acknowledged > 0 || failed == 0 || len(b.Items) == 1:
		b.fault, b.delay = record, after
	default:
		b.fault, b.delay = together, after
	}
	b.Outcomes = make([]Outcome, len(b.Items))
	n := 0
	for _, o := range b.objects {
		waits := false // later records of an object wait behind one that waits
		for range o.held {
			i, r := b.Items[n], results[n]
			switch {
			case r.Verdict == Acknowledged:
				b.Outcomes[n] = Delivered
				o.flow.delivered = now
			case waits:
			case r.Verdict == Unsendable, r.Verdict == Refused && s.refuse(i, now), r.Verdict == Failed && s.attempt(b, o, i, now):
				b.Outcomes[n] = Letter
				if i.Attempts == 0 {
					i.Attempts, i.Failed = 1, now
				}
			}
			waits = waits || b.Outcomes[n] == Waits
			n++
		}
	}
	s.judgeFlows(b, now)
	s.options.Share.noteDelivered(b.flows, now)
	s.options.Share.give(b.class)
	s.countApart(b, slices.Contains(b.Outcomes, Letter))
}

// countFailures counts a call towards whether the sink is away. One record that is refused for good counts as one call: a sink that refuses
// whatever it gets is misconfigured.
func (s *Scheduler) countFailures(b *Batch, acknowledged, failed bool, refused int, now time.Time) {
	switch {
	case acknowledged:
		s.sink.failures, s.sink.surprises, s.sink.pause, s.sink.delivered = 0, 0, s.options.Initial, now
	case failed && b.alone && s.sink.delivered.After(b.objects[0].failsSince): // it is known to fail by itself, which proves nothing
	case failed:
		s.sink.failures += max(1, refused)
		if slices.ContainsFunc(b.flows, func(f *flow) bool { return s.trusted(f, now) }) {
			s.sink.surprises++
		}
		if b.probe {
			s.sink.pause = min(2*s.sink.pause, maxPause)
		}
	}
}

// refuse reports whether a record that is refused for good becomes a letter: the sink works, or something was delivered since it was refused
// first.
func (s *Scheduler) refuse(i *Item, now time.Time) bool {
	if i.refused.IsZero() {
		i.refused = now
	}
	return s.full || s.sink.failures < awayAfter || s.sink.delivered.After(i.refused)
}

// attempt counts a record that failed by itself, and reports whether it becomes a letter.
func (s *Scheduler) attempt(b *Batch, o *object, i *Item, now time.Time) bool {
	if b.fault != record {
		return false
	}
	first := i.Attempts == 0
	if first {
		i.Failed = now
	}
	if first || s.sink.delivered.After(o.failed) {
		i.Attempts++
	}
	return s.options.Attempts > 0 && i.Attempts >= s.options.Attempts && !s.sink.delivered.Before(i.Failed)
}

// judgeFlows notes what a call shows of the flows in it.
func (s *Scheduler) judgeFlows(b *Batch, now time.Time) {
	blamed := b.fault != ours && (b.slow || len(b.Items) == 1 && !b.alone || b.fault == together && len(b.flows) == 1 || b.delay > 0 && b.round > 0)
	n := 0
	for _, o := range b.objects {
		for range o.held {
			if b.Outcomes[n] == Letter || b.Outcomes[n] == Waits && blamed { // to write a letter may take long
				o.flow.blamed = now
			}
			n++
		}
	}
	if len(b.flows) > 1 {
		return
	}
	f := b.flows[0]
	f.called = now
	if b.fault == delayed {
		f.until, f.blamed = now.Add(b.delay), now.Add(b.delay)
	}
	if b.alone && b.fault != none && b.fault != ours {
		f.aloneAt = now.Add(alonePause)
	}
}

// Done ends a call. What is settled leaves, and what is not is sent again.
func (s *Scheduler) Done(b *Batch, now time.Time) {
	s.calls--
	if b.countsApart {
		s.apartCalls--
	}
	for _, f := range b.flows {
		f.calls--
		if b.retry {
			f.retries--
		}
	}
	var waiting []*object
	n := 0
	for _, o := range b.objects {
		kept := o.items[:0]
		for k := range o.held {
			if b.Outcomes[n+k] == Waits {
				kept = append(kept, o.items[k])
			}
		}
		n += o.held
		o.sent = false
		waits := len(kept)
		clear(o.items[waits:o.held])
		kept = append(kept, o.items[o.held:]...)
		o.items = kept
		o.held = waits
		if waits > 0 {
			waiting = append(waiting, o)
			if o.failsSince.IsZero() && b.fault != ours {
				o.failsSince = now
			}
			continue
		}
		o.tries, o.alone, o.failsSince = 0, false, time.Time{}
		s.setFailing(o, false)
		if len(o.items) > 0 {
			s.ready(o, now)
			continue
		}
		delete(s.objects, b.Items[n-1].Ref)
		o.flow.objects--
	}
	if len(waiting) > 0 {
		s.again(b, waiting, now)
	}
	for _, f := range b.flows {
		s.place(f, now)
		s.rest(f)
	}
}

// again has what was not settled of a batch sent again.
func (s *Scheduler) again(b *Batch, waiting []*object, now time.Time) {
	switch {
	case b.fault == ours:
		s.regroup(waiting, b.round, now, 0)
	case b.fault == delayed, b.fault == together && b.delay > 0 && b.round > 0: // the records are not to blame
		for _, o := range waiting {
			o.alone = false
			s.setFailing(o, false)
			s.ready(o, now)
		}
	case b.fault == record || b.fault == none:
		var refused []*object
		for _, o := range waiting {
			if o.items[0].refused.IsZero() {
				s.delay(o, len(b.Items) == 1 || b.slow, now)
			} else {
				refused = append(refused, o)
			}
		}
		if len(refused) > 0 { // they become letters soon, so that nothing is gained by sending them at a pace
			s.regroup(refused, b.round, now, maxPause)
		}
	case b.round == 0 && !b.slow: // perhaps the sink took it already, and recognizes it
		s.regroup(waiting, 1, now, max(s.options.Initial, min(b.delay, maxPause)))
	default:
		for _, part := range parts(waiting, b.slow) {
			s.regroup(part, b.round+1, now, s.options.Initial)
		}
	}
}

// delay has an object wait that failed by itself. If it is lonely, it is sent alone: nothing else was in the call, or the call was slow.
func (s *Scheduler) delay(o *object, lonely bool, now time.Time) {
	most := maxPause // nothing was delivered since it last failed, so perhaps the sink is to blame
	if s.sink.delivered.After(o.failed) && !o.failed.IsZero() {
		most = s.options.Max
	}
	wait := min(most, s.options.Initial<<min(o.tries, 16))
	o.tries++
	o.failed = now
	s.setFailing(o, true)
	o.alone = o.alone || lonely
	s.after(now, wait, func(now time.Time) { s.ready(o, now) })
}

// regroup has objects wait that are to be sent together. They fail, if they are all of one flow.
func (s *Scheduler) regroup(objects []*object, round int, now time.Time, wait time.Duration) {
	group := &Batch{objects: objects, round: round}
	if len(byFlow(objects)) == 1 {
		for _, o := range objects {
			s.setFailing(o, true)
		}
	}
	if wait == 0 {
		s.groupReady(group, now)
		return
	}
	s.after(now, wait, func(now time.Time) { s.groupReady(group, now) })
}

// groupReady puts a group where it is found when it is its turn: in the company lane of its flow if it is of one.
func (s *Scheduler) groupReady(group *Batch, now time.Time) {
	if len(byFlow(group.objects)) > 1 {
		s.groups = append(s.groups, group)
		return
	}
	f := group.objects[0].flow
	f.company = append(f.company, group)
	s.place(f, now)
}

// parts splits objects that failed together: by flow if the call was slow, else in two halves. If they are of several flows, no flow is in both
// halves. Of one object the first half of the records stays.
func parts(objects []*object, slow bool) [][]*object {
	flows, half := byFlow(objects), len(objects)/2
	switch {
	case len(flows) > 1 && slow:
		return flows
	case len(flows) > 1:
		var halves [2][]*object
		for _, of := range flows {
			n := 0
			if len(halves[0]) >= len(objects)-half || len(halves[0])+len(of) == len(objects) && len(halves[0]) > 0 {
				n = 1
			}
			halves[n] = append(halves[n], of...)
		}
		return halves[:]
	case half > 0:
		return [][]*object{objects[:half], objects[half:]}
	default:
		objects[0].held = (objects[0].held + 1) / 2
		return [][]*object{objects}
	}
}

// byFlow splits objects by flow.
func byFlow(objects []*object) (flows [][]*object) {
	at := map[*flow]int{}
	for _, o := range objects {
		n, ok := at[o.flow]
		if !ok {
			n = len(flows)
			at[o.flow] = n
			flows = append(flows, nil)
		}
		flows[n] = append(flows[n], o)
	}
	return flows
}

// setFailing sets whether an object counts as failing.
func (s *Scheduler) setFailing(o *object, failing bool) {
	if o.failing == failing {
		return
	}
	o.failing = failing
	if failing {
		o.flow.failing++
	} else {
		o.flow.failing--
	}
}
