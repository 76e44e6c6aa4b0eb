package pipeline

import (
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	sched "github.com/kubeferry/kubeferry/pipeline/flow"
	"github.com/kubeferry/kubeferry/sinks"
)

// settle takes what was delivered, or is a dead letter, out of the backlog, and gives the rest back to the scheduler.
func (p *Pipeline) settle(b *batch, errs []*sinks.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	for n, i := range b.items {
		i.inBatch = false
		if b.Outcomes[n] == sched.Waits {
			continue
		}
		p.countSettled(i, b.Outcomes[n], errs[n], now)
		i.settled = true
		p.noteWell(i)
		p.freeMemory(i)
		p.forget(i)
	}
	p.scheduler.Done(b.Batch, now)
	for n, i := range b.items {
		switch {
		case b.Outcomes[n] == sched.Waits && p.scheduler.Fails(i.Ref):
			if n+1 == len(b.items) || b.items[n+1].Ref != i.Ref { // the last one of its object
				p.noteObjectFails(i.Ref)
			}
			if i.Attempts == 1 && b.attempts[n] == 0 {
				p.logFailing(i, errs[n])
			}
		case b.Outcomes[n] == sched.Waits && i.delta == nil && !i.notice(): // it could not be read
			p.unload(i)
		}
		if i.flow != nil {
			p.log.dropIdle(i.flow)
		}
	}
	p.announceFreed() // a snapshot does not wait for what fails
	p.recycle(b)
}

// noteObjectFails notes that all that waits of an object waits for one that fails.
func (p *Pipeline) noteObjectFails(ref delta.Ref) {
	items, _ := p.scheduler.Waiting(ref)
	for _, i := range items {
		p.noteFailing(itemOf(i))
	}
}

// countSettled counts an item that was delivered, or is a dead letter.
func (p *Pipeline) countSettled(i *item, outcome sched.Outcome, err *sinks.Error, now time.Time) {
	reason := ""
	switch {
	case i.noBody:
	case outcome == sched.Letter:
		reason = deadReason(err)
	default:
		p.metrics.delivered(now.Sub(i.observed))
		p.lastDelivered.set(i.Ref, now)
	}
	p.counts.settle(i, reason)
}

// maxFailureWarnings is how many objects of a flow may fail before further ones are no news.
const maxFailureWarnings = 10

// logFailing warns of the first failure of a record that fails by itself.
func (p *Pipeline) logFailing(i *item, err *sinks.Error) {
	if !p.awaySince.IsZero() || err == nil {
		return
	}
	log := p.logger.Warn
	if p.scheduler.Failing(i.Flow) > maxFailureWarnings { // a missing topic fails all of its objects
		log = p.logger.Debug
	}
	log("an object's record fails; its later records wait behind it",
		"resource", delta.ResourceName(i.Ref.Resource), "namespace", i.Ref.Namespace, "name", i.Ref.Name, "err", err)
}
