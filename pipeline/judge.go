package pipeline

import (
	"time"

	sched "github.com/kubeferry/kubeferry/pipeline/flow"
	"github.com/kubeferry/kubeferry/sinks"
)

// judge reports to the scheduler how the call of a batch ended. The scheduler returns what becomes of each record. cancelled is set if we ended the call:
// that proves nothing about the sink, but what was acknowledged counts.
func (p *Pipeline) judge(b *batch, errs []*sinks.Error, cancelled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !cancelled {
		p.refuseMarks(b, errs)
	}
	results := make([]sched.Result, len(errs))
	for n, err := range errs {
		b.attempts = append(b.attempts, b.items[n].Attempts)
		results[n] = result(b.items[n], err, cancelled)
		if err != nil && !cancelled && !b.items[n].needsLetter() {
			p.metrics.errors.WithLabelValues(string(err.Reason)).Inc()
			p.lastErr = err.Error()
		}
	}
	now := p.now()
	p.scheduler.SetFull(p.budget.full)
	p.scheduler.Judge(b.Batch, results, b.took, now)
	for n, i := range b.items {
		if i.logged && i.Attempts != b.attempts[n] {
			p.log.attempted[i] = struct{}{} // a restart or another leader goes on counting
		}
	}
	p.noteAvailable(now)
}

// result is what an error means for the record.
func result(i *item, err *sinks.Error, cancelled bool) sched.Result {
	switch {
	case i.noBody: // the sink was not called for it
		return sched.Result{Verdict: sched.Unsendable}
	case err == nil:
		return sched.Result{Verdict: sched.Acknowledged}
	case i.needsLetter(), err.Permanent && err.Reason == sinks.ReasonTooLarge && !cancelled: // anyone can make objects that are too large
		return sched.Result{Verdict: sched.Unsendable}
	case cancelled:
		return sched.Result{Verdict: sched.Cancelled}
	case err.Permanent:
		return sched.Result{Verdict: sched.Refused}
	default:
		return sched.Result{Verdict: sched.Failed, RetryAfter: min(err.RetryAfter, sinks.MaxRetryAfter)}
	}
}

// noteAvailable notes, and logs, that the sink is away, or is back. p.mu is held.
func (p *Pipeline) noteAvailable(now time.Time) {
	switch away := p.scheduler.Away(now); {
	case away && p.awaySince.IsZero():
		p.awaySince = now
		p.logger.Warn("the sink is away; single records are sent until it takes one", "err", p.lastErr)
		p.announceFreed() // a snapshot may be read on
	case !away && !p.awaySince.IsZero():
		p.logger.Info("the sink takes records again", "after", now.Sub(p.awaySince).Round(time.Millisecond))
		p.awaySince = time.Time{}
	}
}

// refuseMarks makes the error of a mark permanent if there is no place for it, while there is one for other records: something
// got through since the mark was first refused.
func (p *Pipeline) refuseMarks(b *batch, errs []*sinks.Error) {
	for n, i := range b.items {
		if i.mark == nil || !noPlace(errs[n]) {
			continue
		}
		if i.refusedAt == 0 {
			i.refusedAt = p.counts.successes + 1
		}
		if p.counts.successes >= i.refusedAt {
			err := *errs[n]
			err.Permanent = true
			errs[n] = &err
		}
	}
}

// noPlace reports whether an error says that there is no place for a record, or no right to it. A mark goes where placeholders of
// an object lead to `_`, so it may be the only record that fails like that.
func noPlace(err *sinks.Error) bool {
	return err != nil && (err.Reason == sinks.ReasonNotFound || err.Reason == sinks.ReasonUnauthorized)
}
