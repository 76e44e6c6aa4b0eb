package pipeline

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// This file chooses what is sent while the breaker is tripped: single records, and batches that failed, one at a time.

// pickProbe returns one record of a ready object, or a batch that failed. Every second probe is of a notice, since
// others wait for it; every second one of the rest is of a namespace with a success lately, which the sink takes once it is back. The
// others take turns. Untried objects go first, the newest of them: behind a thousand refused objects one would wait for an hour. While
// there are namespaces that had no probe yet, it is of one of these.
func (p *Pipeline) pickProbe(now time.Time) (*batch, time.Duration) {
	wait, early := p.breaker.wait(now)
	if p.breaker.onlyUnprobed(now) {
		return p.pickUnprobed(now, wait)
	}
	if wait > 0 {
		return nil, wait
	}
	b := newBatch()
	b.probe = true
	retry := p.nextRetry()
	if early {
		retry = nil
	}
	due := p.backlog.turns.of(noticeNamespace) == math.MinInt
	ready, failed := due && p.apart.has(noticeNamespace, p.mayCallAlone(noticeNamespace)), due && retry != nil && p.turnOf(retry) == math.MinInt
	if ready && failed { // one may be refused, and the other not
		p.breaker.notice = !p.breaker.notice
		ready = p.breaker.notice
	}
	switch {
	case ready:
		p.fillProbe(b, func(namespace string) bool { return namespace == noticeNamespace })
	case !failed:
		var lately *batch
		if p.breaker.lately = !p.breaker.lately; p.breaker.lately {
			lately = p.pickLately(b, retry != nil)
		}
		if len(b.items) == 0 && lately == nil {
			p.pickInTurn(b, retry)
		}
		retry = cmp.Or(lately, retry)
	}
	if len(b.items) == 0 {
		p.recycle(b)
		if early {
			p.takeRetryApart()
		}
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

// pickUnprobed returns a record of a namespace that had no probe, within a delay that the sink requested: perhaps it did so for the records
// of one tenant only, which had all the early probes.
func (p *Pipeline) pickUnprobed(now time.Time, wait time.Duration) (*batch, time.Duration) {
	if p.breaker.early <= -unprobedProbes {
		return nil, wait
	}
	if soon := p.breaker.next.Sub(now); soon > 0 {
		return nil, min(wait, soon)
	}
	b := newBatch()
	b.probe = true
	p.fillProbe(b, p.backlog.turns.unprobed)
	if len(b.items) == 0 {
		p.recycle(b)
		p.takeRetryApart()
		p.breaker.postpone(now.Add(p.breaker.pause()))
		return nil, min(wait, p.breaker.next.Sub(now))
	}
	p.breaker.probed(now, false)
	return b, 0
}

// takeRetryApart takes a batch of several namespaces apart that failed and has something of one that had no probe: as a whole it would fail
// again with what the delay was requested for. One of a single namespace waits, since the delay may be its own.
func (p *Pipeline) takeRetryApart() {
	unprobed := func(i *item) bool { return p.backlog.turns.unprobed(i.namespace()) }
	n := slices.IndexFunc(p.retries, func(b *batch) bool { return b.severalNamespaces() && slices.ContainsFunc(b.items, unprobed) })
	if n < 0 {
		return
	}
	b := p.retries[n]
	p.retries = slices.Delete(p.retries, n, n+1)
	for _, o := range slices.Compact(b.objects) {
		p.backlog.setApart(o, true)
		p.done(o, true, 0)
	}
	p.recycle(b)
}

// pickLately fills a probe of a namespace of which something got through lately, else of one of which something ever did, or returns such a
// batch that failed.
func (p *Pipeline) pickLately(b *batch, retry bool) *batch {
	for _, since := range []time.Time{p.breaker.since.Add(-latelyBefore), {}} {
		lately := func(namespace string) bool { return p.backlog.turns.succeeded[namespace].After(since) }
		p.fillProbe(b, lately)
		if len(b.items) > 0 {
			return nil
		}
		of := func(i *item) bool { return lately(i.namespace()) }
		n := slices.IndexFunc(p.retries, func(b *batch) bool { return slices.ContainsFunc(b.items, of) })
		if retry && n >= 0 {
			return p.retries[n]
		}
	}
	return nil
}

// pickInTurn fills a probe of a ready object, or leaves it empty for the batch that failed, in turn.
func (p *Pipeline) pickInTurn(b, retry *batch) {
	other := retry != nil && (!p.backlog.unprobed || p.turnOf(retry) <= 0 && !retry.severalNamespaces())
	if p.breaker.fresh = !p.breaker.fresh; p.breaker.fresh || !other {
		p.backlog.unprobed = p.fillProbe(b, func(string) bool { return true })
	}
}

// nextRetry returns the batch that failed which is probed next, nil if there is none: the one with the namespace whose last probe is
// longest ago. One tenant may have dozens, and another a gap that all changes of its watch wait for.
func (p *Pipeline) nextRetry() *batch {
	if len(p.retries) == 0 {
		return nil
	}
	return slices.MinFunc(p.retries, func(a, b *batch) int { return cmp.Compare(p.turnOf(a), p.turnOf(b)) })
}

// turnOf returns the lowest turn of the namespaces in a batch, or the turn of the batch itself if that is later.
func (p *Pipeline) turnOf(b *batch) int {
	lowest := math.MaxInt
	for _, i := range b.items {
		lowest = min(lowest, p.backlog.turns.of(i.namespace()))
	}
	if lowest == math.MinInt {
		return lowest
	}
	return max(lowest, b.turn)
}

// takeRetry takes a batch that failed for a probe. If it has several namespaces, that is no turn of theirs: its failure would show nothing
// of any of them.
func (p *Pipeline) takeRetry(b *batch) {
	n := slices.Index(p.retries, b)
	p.retries = slices.Delete(p.retries, n, n+1)
	turns := &p.backlog.turns
	switch {
	case !b.severalNamespaces():
		turns.probe(b.items[0].namespace())
	case slices.ContainsFunc(b.items, (*item).notice):
		turns.probe(noticeNamespace)
	default:
		turns.last++
		b.turn = turns.last
	}
}

// fillProbe fills a probe with the first record of a ready object of one of some namespaces, and reports whether that had no probe yet. All
// objects that are ready wait in p.apart from now on, until the breaker is reset.
func (p *Pipeline) fillProbe(b *batch, among func(namespace string) bool) (first bool) {
	for o := p.backlog.take(); o != nil; o = p.backlog.take() {
		p.apart.push(o)
	}
	turns := &p.backlog.turns
	for {
		o := p.apart.probe(turns, among, p.backlog.suspectTurn, p.mayCallApart, p.mayCallAlone)
		if o == nil {
			return false
		}
		if p.awaitReturn(o) {
			continue
		}
		if first = turns.of(o.namespace()) <= 0; first {
			turns.newest = !turns.newest
		}
		turns.probe(o.namespace())
		b.suspect = p.backlog.suspect(o.namespace(), p.now)
		o.inFlight = p.appendRecord(b, o, o.items[0])
		return first
	}
}

// turns order the namespaces for probes.
type turns struct {
	// numbers are of the last probe of each namespace since the breaker tripped, last is that of the last one.
	numbers map[string]int
	last    int
	// newest is set if of the namespaces that had no probe the one with the newest object is next, else the one that waits for longest.
	newest bool
	// succeeded is when something of a namespace got through last. It is not kept of all namespaces.
	succeeded map[string]time.Time
}

const (
	// latelyBefore is how long before the breaker tripped something of a namespace got through lately.
	latelyBefore = time.Minute
	// maxSucceeded is of how many namespaces the last success is kept.
	maxSucceeded = 1000
)

func newTurns() turns { return turns{numbers: map[string]int{}, succeeded: map[string]time.Time{}} }

// probe notes a probe of a namespace.
func (t *turns) probe(namespace string) {
	t.last++
	t.numbers[namespace] = t.last
}

// of returns what orders the namespaces: the one with the lowest is probed next; 0 if it had no probe. Notices have every second turn.
func (t *turns) of(namespace string) int {
	if namespace == noticeNamespace && t.numbers[namespace] < max(1, t.last) {
		return math.MinInt
	}
	return t.numbers[namespace]
}

// unprobed reports whether a namespace had no probe, or no notice had one.
func (t *turns) unprobed(namespace string) bool { return t.numbers[namespace] == 0 }

// compare orders namespaces: of two with the same turn, the one with the last success is first.
func (t *turns) compare(a, b string) int {
	return cmp.Or(cmp.Compare(t.of(a), t.of(b)), t.succeeded[b].Compare(t.succeeded[a]))
}

// success notes of which namespaces something of a batch was delivered.
func (t *turns) success(b *batch, results []result, now time.Time) {
	last := noticeNamespace
	for n, i := range b.items {
		namespace := i.namespace()
		if results[n] != delivered || namespace == last {
			continue
		}
		last = namespace
		if _, has := t.succeeded[namespace]; !has && len(t.succeeded) >= maxSucceeded {
			maps.DeleteFunc(t.succeeded, func(_ string, at time.Time) bool { return now.Sub(at) > latelyBefore })
			if len(t.succeeded) >= maxSucceeded {
				clear(t.succeeded)
			}
		}
		t.succeeded[namespace] = now
	}
}

// lately reports whether something of a namespace got through within the last minute, as far as that is kept.
func (t *turns) lately(namespace string, now time.Time) bool {
	return now.Sub(t.succeeded[namespace]) < latelyBefore
}

// reset forgets the probes.
func (t *turns) reset() {
	clear(t.numbers)
	t.last = 0
}
