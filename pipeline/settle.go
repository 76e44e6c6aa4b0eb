package pipeline

import (
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// settle takes what was delivered or is dead out of the backlog, and gives the objects back.
func (p *Pipeline) settle(b *batch, v *outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.announceDrained()
	now := p.now()
	p.countCall(b, -1)
	p.releaseBehindMarks(b, v)
	if v.keep {
		if len(b.items) > 1 { // the delay may have been requested for some of them only
			v.delay = min(v.delay, maxProbeInterval)
		}
		b.due = now.Add(max(v.delay, p.options.Retry.Initial))
		if !p.breaker.tripped {
			b.turn = 0
		}
		p.retries = append(p.retries, b)
		return
	}
	for n, i := range b.items {
		if v.results[n] == failed {
			continue
		}
		p.countSettled(i, v.results[n], v.errs[n], now)
		p.backlog.remove(b.objects[n], i)
		p.freeMemory(i)
		p.forget(i)
	}
	// Calls with single records would only be more calls for a sink that limits their rate.
	isolate := v.apart && !b.severalNamespaces() && (v.delay == 0 || b.items[0].attempts >= failedRun)
	for n := 0; n < len(b.objects); {
		o, anyFailed, delay := b.objects[n], false, time.Duration(0)
		for ; n < len(b.objects) && b.objects[n] == o; n++ {
			if v.results[n] == failed {
				anyFailed, delay = true, max(delay, min(v.errs[n].RetryAfter, v.delay))
			}
		}
		if !v.cancelled || !anyFailed {
			p.logFailing(o, anyFailed, v.errs[n-1])
			o.failedAlone = anyFailed && len(b.items) == 1
		}
		o.isolated = anyFailed && (o.isolated || isolate)
		p.backlog.setApart(o, anyFailed && (o.apart || v.apart))
		p.done(o, anyFailed, delay)
	}
	p.announceFreed() // a snapshot does not wait for what fails
	p.recycle(b)
}

// done gives an object back that a batch held.
func (p *Pipeline) done(o *objectQueue, failed bool, delay time.Duration) {
	p.tried(o)
	if !failed {
		p.release(o)
	}
	p.backlog.done(o, failed, delay)
	if failed {
		p.unload(o)
	}
	p.log.dropIdle(o.flow)
}

// releaseBehindMarks lets what waits behind a mark go if there is no place for it, or it fails alone. It is tried again, and its
// snapshot does not count as complete.
func (p *Pipeline) releaseBehindMarks(b *batch, v *outcome) {
	for n, i := range b.items {
		if i.mark == nil || v.results[n] != failed || i.released || v.errs[n] == nil {
			continue
		}
		if b.objects[n].isolated || noPlace(v.errs[n]) {
			p.counts.spoilSnapshot(i.watch)
			i.releasedAt = p.counts.successes
			p.backlog.releaseHeld(i)
		}
	}
}

// countSettled counts an item that was delivered or is dead.
func (p *Pipeline) countSettled(i *item, r result, err *sinks.Error, now time.Time) {
	reason := ""
	if r == dead {
		reason = deadReason(err)
	} else {
		p.metrics.delivered(now.Sub(i.observed))
		p.lastDelivered.set(i.ref, now)
	}
	p.counts.settle(i, reason)
}

// maxFailureWarnings is how many objects may fail at once before further ones are no news.
const maxFailureWarnings = 10

// logFailing warns of the first failure of an object that is held back while others go on.
func (p *Pipeline) logFailing(o *objectQueue, failing bool, err *sinks.Error) {
	if failing && !o.failing && !p.breaker.tripped {
		log := p.logger.Warn
		if len(p.backlog.failing) >= maxFailureWarnings { // a missing topic fails all of its objects
			log = p.logger.Debug
		}
		log("an object's record fails; its later records wait behind it",
			"resource", delta.ResourceName(o.ref.Resource), "namespace", o.ref.Namespace, "name", o.ref.Name, "err", err)
	}
	o.failing = failing
}

// announceDrained wakes Drain when nothing is waiting.
func (p *Pipeline) announceDrained() {
	if p.counts.Waiting+p.counts.GapsWaiting == 0 {
		select {
		case p.drained <- struct{}{}:
		default:
		}
	}
}
