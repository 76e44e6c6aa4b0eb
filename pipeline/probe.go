package pipeline

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// This file chooses what is sent while the breaker is tripped: single records, and batches that failed, one at a time.

// pickProbe returns one record of a ready object, or of a candidate, or a batch that failed, in turn. An object that was not tried goes
// first, the newest of them: behind a thousand objects that the sink refuses it would wait for an hour. While there are namespaces that
// had no probe yet, it is of one of these.
func (p *Pipeline) pickProbe(now time.Time) (*batch, time.Duration) {
	wait, early := p.breaker.wait(now)
	if wait > 0 {
		return nil, wait
	}
	b := newBatch()
	b.probe = true
	unprobed, turns, retry := p.backlog.unprobed, p.backlog.turns, p.nextRetry()
	if early {
		retry = nil
	}
	notice := retry != nil && p.turnOf(retry) == math.MinInt || p.apart.has(noticeTurn) && turns.of(noticeTurn) == math.MinInt
	if i := p.log.candidate; i != nil && !notice && (!unprobed || turns[i.turn()] <= 0) {
		if p.breaker.ahead = !p.breaker.ahead; p.breaker.ahead {
			p.fillAhead(b)
		}
	}
	if len(b.items) == 0 {
		other := retry != nil && (!unprobed || p.turnOf(retry) <= 0)
		if p.breaker.fresh = !p.breaker.fresh; p.breaker.fresh || !other {
			p.fill(b, 1)
		}
	}
	if len(b.items) == 0 {
		p.recycle(b)
		if retry == nil {
			return nil, beatInterval
		}
		b = retry
		p.takeRetry(b)
	}
	b.probe = true
	p.breaker.probed(now, p.backlog.unprobed)
	return b, 0
}

// nextRetry returns the batch that failed which is probed next, nil if there is none: the one with the namespace whose last probe is
// longest ago. One tenant may have dozens, and another a gap that all changes of its watch wait for.
func (p *Pipeline) nextRetry() *batch {
	if len(p.retries) == 0 {
		return nil
	}
	return slices.MinFunc(p.retries, func(a, b *batch) int { return cmp.Compare(p.turnOf(a), p.turnOf(b)) })
}

// turnOf returns the lowest turn of the namespaces in a batch.
func (p *Pipeline) turnOf(b *batch) int {
	lowest := math.MaxInt
	for _, i := range b.items {
		lowest = min(lowest, p.backlog.turns.of(i.turn()))
	}
	return lowest
}

// takeRetry takes a batch that failed for a probe. If it has several namespaces, that is no turn of theirs: its failure would show nothing
// of any of them.
func (p *Pipeline) takeRetry(b *batch) {
	n := slices.Index(p.retries, b)
	p.retries = slices.Delete(p.retries, n, n+1)
	switch {
	case !b.severalNamespaces():
		p.backlog.turns.probed(b.items[0].turn())
	case slices.ContainsFunc(b.items, (*item).notice):
		p.backlog.turns.probed(noticeTurn)
	default:
		p.backlog.turns.probed(severalTurn)
	}
}

// takeProbe takes the object for a probe. All that are ready wait in p.apart from now on, until the breaker is reset.
func (p *Pipeline) takeProbe(b *batch) *objectQueue {
	for o := p.backlog.take(); o != nil; o = p.backlog.take() {
		p.apart.push(o)
	}
	o := p.apart.probe(p.backlog.turns, p.backlog.suspectTurn, p.maySendApart(), p.maySendAlone())
	if o == nil || o.turn() != noticeTurn {
		p.backlog.unprobed = o != nil && p.backlog.turns[o.turn()] <= 0
	}
	if o != nil {
		p.backlog.turns.probed(o.turn())
		b.apart = p.backlog.suspect(o, p.now())
	}
	return o
}

// turns are the numbers of the last probe of each namespace since the breaker tripped, and of those that had none, but a success,
// minus the number of that: the one with the last success is probed first.
type turns map[string]int

// maxTurns is how many namespaces with a success are remembered.
const maxTurns = 1000

// severalTurn stands for batches of several namespaces.
const severalTurn = "/several"

func (t turns) probed(namespace string) { t[namespace] = t.last() + 1 }

// last returns the number of the last probe, 0 if there was none.
func (t turns) last() int {
	last := 0
	for _, n := range t {
		last = max(last, n)
	}
	return last
}

// of returns what orders the namespaces: the one with the lowest is probed next. Notices have every second turn, since others wait for them.
func (t turns) of(namespace string) int {
	if namespace == noticeTurn && t[namespace] < max(1, t.last()) {
		return math.MinInt
	}
	return t[namespace]
}

// succeeded notes of which namespaces something of a batch was delivered.
func (t turns) succeeded(b *batch, results []result, successes uint64) {
	last := noticeTurn
	for n, i := range b.items {
		turn := i.turn()
		if results[n] != delivered || turn == last {
			continue
		}
		last = turn
		if _, has := t[turn]; !has && len(t) >= maxTurns {
			clear(t)
		}
		t[turn] = -1 - int(successes) //nolint:gosec // far from 2^63
	}
}

func (t turns) reset() {
	maps.DeleteFunc(t, func(_ string, n int) bool { return n > 0 })
}
