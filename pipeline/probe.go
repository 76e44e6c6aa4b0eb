package pipeline

import (
	"cmp"
	"slices"
	"time"
)

// This file chooses what is sent while the breaker is tripped: single records, and batches that failed, one at a time.

// pickProbe returns one record of a ready object, or of a candidate, or a batch that failed, in turn. An object that was not tried goes
// first, the newest of them: behind a thousand objects that the sink refuses it would wait for an hour. What comes of a namespace that
// had no probe yet does not wait for its turn.
func (p *Pipeline) pickProbe(now time.Time) (*batch, time.Duration) {
	wait, early := p.breaker.wait(now)
	if wait > 0 {
		return nil, wait
	}
	b := newBatch()
	b.probe = true
	switch i := p.log.candidate; {
	case i != nil && p.backlog.turns[i.turn()] == 0:
		p.fillAhead(b)
	case p.backlog.unprobed:
		p.backlog.unprobed = false
		p.fill(b, 1)
	default:
		if p.breaker.ahead = !p.breaker.ahead; p.breaker.ahead {
			p.fillAhead(b)
		}
	}
	if len(b.items) == 0 {
		if p.breaker.fresh = !p.breaker.fresh; p.breaker.fresh || early || len(p.retries) == 0 {
			p.fill(b, 1)
		}
	}
	if len(b.items) == 0 {
		p.recycle(b)
		if early || len(p.retries) == 0 {
			return nil, beatInterval
		}
		b = p.takeRetry()
	}
	b.probe = true
	p.breaker.probed(now)
	return b, 0
}

// takeRetry returns a batch that failed: the one with the namespace whose last probe is longest ago. One tenant may have dozens, and
// another a gap that all changes of its watch wait for.
func (p *Pipeline) takeRetry() *batch {
	turns := p.backlog.turns
	last := func(b *batch) int {
		first := slices.MinFunc(b.items, func(i, j *item) int { return cmp.Compare(turns[i.turn()], turns[j.turn()]) })
		return turns[first.turn()]
	}
	b := slices.MinFunc(p.retries, func(a, b *batch) int { return cmp.Compare(last(a), last(b)) })
	n := slices.Index(p.retries, b)
	p.retries = slices.Delete(p.retries, n, n+1)
	for n, i := range b.items {
		if n == 0 || i.turn() != b.items[n-1].turn() {
			turns.had(i.turn())
		}
	}
	return b
}

// takeProbe takes the object for a probe. All that are ready wait in p.apart from now on, until the breaker is reset.
func (p *Pipeline) takeProbe(b *batch) *objectQueue {
	for o := p.backlog.take(); o != nil; o = p.backlog.take() {
		p.apart.push(o)
	}
	o := p.apart.probe(p.backlog.turns, p.backlog.suspectTurn, p.maySendApart(), p.maySendAlone())
	b.apart = o != nil && p.backlog.suspect(o, p.now())
	return o
}

// turns are the numbers of the last probe of each namespace since the breaker tripped.
type turns map[string]int

func (t turns) had(namespace string) {
	last := 0
	for _, n := range t {
		last = max(last, n)
	}
	t[namespace] = last + 1
}
