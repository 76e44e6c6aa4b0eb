package pipeline

import (
	"context"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// permanentRun is how many records may be refused for good with nothing delivered between before the sink is blamed:
// a receiver that answers 400 to everything is misconfigured.
const permanentRun = 10

// outcome of one record.
type outcome int

const (
	delivered outcome = iota
	failed            // stays at the head of its object
	dead              // to the dead letter
)

// verdict is what becomes of a unit after a call.
type verdict struct {
	outcomes []outcome
	errs     []*sinks.Error
	// keep says that the unit stays together and is tried again as it was.
	keep bool
	// suspect says that its objects travel alone until they get through.
	suspect bool
	// delay is the least that what failed waits.
	delay time.Duration
}

// deliver sends a unit and settles what can be settled.
func (p *Pipeline) deliver(ctx context.Context, u *unit) {
	errs := p.send(ctx, u)
	v := p.judge(u, errs, ctx.Err() != nil)
	p.bury(ctx, u, v)
	p.settle(u, v)
}

// send hands the records to the sink, except for those that could not be made, and returns an error for each.
func (p *Pipeline) send(ctx context.Context, u *unit) []*sinks.Error {
	p.mu.Lock()
	if u.tries == 0 {
		u.mark = p.ledger.successes()
	}
	p.mu.Unlock()
	u.tries++

	errs := make([]*sinks.Error, len(u.items))
	records, indices := u.records, []int(nil)
	for n, i := range u.items {
		if i.err != nil {
			errs[n] = sinks.Classify(sinks.Permanent(sinks.ReasonEncode, i.err))
		} else {
			indices = append(indices, n)
		}
	}
	if len(indices) < len(u.items) {
		records = make([]sinks.Record, 0, len(indices))
		for _, n := range indices {
			records = append(records, u.records[n])
		}
	}
	if len(records) == 0 {
		return errs
	}
	ctx, cancel := context.WithTimeout(ctx, p.options.Limits.Timeout)
	defer cancel()
	for n, err := range sinks.PerRecord(p.options.Sink.Deliver(ctx, records), len(records)) {
		errs[indices[n]] = sinks.Classify(err)
	}
	return errs
}

// judge decides what the errors of a call mean, and moves the gate. It is the one place that knows whose fault a
// failure is; the package's documentation gives the rule.
func (p *Pipeline) judge(u *unit, errs []*sinks.Error, stopping bool) *verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := &verdict{outcomes: outcomes(u, errs), errs: errs}
	probe := u.probe
	u.probe = false
	if stopping { // cancelled by us, which says nothing of the sink; what was acknowledged still counts
		for n := range v.outcomes {
			v.outcomes[n] = min(v.outcomes[n], failed)
		}
		return v
	}

	var acknowledged, refused, passing int
	var first *sinks.Error
	for n, err := range errs {
		switch {
		case err == nil:
			acknowledged++
			continue
		case err.Reason == sinks.ReasonEncode && u.items[n].err != nil:
			continue // never reached the sink
		case n > 0 && u.objects[n] == u.objects[n-1] && errs[n-1] != nil && !err.Permanent:
			continue // held back behind a record that failed, which says nothing of the sink
		case err.Permanent:
			refused++
		default:
			passing++
			v.delay = max(v.delay, min(err.RetryAfter, maxRetryAfter))
		}
		if first == nil {
			first = err
		}
		p.metrics.failed(err.Reason)
		p.lastErr = err.Error()
	}
	others := p.ledger.successes() > u.mark // something else got through, so the sink works
	u.mark = p.ledger.successes()

	switch {
	case acknowledged > 0:
		p.refused = 0
		p.open()
	case refused+passing == 0: // nothing was sent
	case passing == 0 && (others || p.refused+refused < permanentRun):
		p.refused += refused
		if probe {
			p.gate.fail(p.now(), 0, true)
		}
	case passing == 0:
		p.refused += refused
		p.blameSink(first, 0, probe)
		v.keep = true
	case u.alone(), others && v.delay == 0:
		v.keep = u.tries < 2 && len(u.items) > 1
		v.suspect = !v.keep
		if probe {
			p.gate.fail(p.now(), 0, true)
		}
	default:
		p.blameSink(first, v.delay, probe)
		v.keep = refused == 0
	}
	p.countAttempts(u, v)
	return v
}

// outcomes reads the errors record by record. Behind a record that failed nothing of its object goes to the dead
// letter before it.
func outcomes(u *unit, errs []*sinks.Error) []outcome {
	out := make([]outcome, len(errs))
	for n, err := range errs {
		switch {
		case err == nil:
			out[n] = delivered
		case n > 0 && u.objects[n] == u.objects[n-1] && out[n-1] == failed:
			out[n] = failed
		case err.Permanent:
			out[n] = dead
		default:
			out[n] = failed
		}
	}
	return out
}

// countAttempts sends what has used up its attempts to the dead letter; its unit cannot be kept then.
func (p *Pipeline) countAttempts(u *unit, v *verdict) {
	now := p.now()
	for n, i := range u.items {
		if v.outcomes[n] == delivered {
			continue
		}
		i.attempts++
		if i.failed.IsZero() {
			i.failed = now
		}
		exhausted := p.options.Retry.Attempts > 0 && i.attempts >= p.options.Retry.Attempts
		follows := n > 0 && u.objects[n] == u.objects[n-1] && v.outcomes[n-1] == failed
		if exhausted && !follows {
			v.outcomes[n] = dead
			v.keep = false
		}
	}
}

// blameSink closes the gate, or keeps it closed.
func (p *Pipeline) blameSink(err *sinks.Error, retryAfter time.Duration, probe bool) {
	if p.gate.fail(p.now(), retryAfter, probe) {
		p.logger.Warn("the sink fails; trying again with single records until one gets through", "err", err)
	} else {
		p.logger.Debug("the sink still fails", "err", err)
	}
}

// open opens the gate if it is closed. Objects that probed in vain go back to the queue; batches stay as they were.
func (p *Pipeline) open() {
	closedFor := p.now().Sub(p.gate.since)
	if !p.gate.succeed() {
		return
	}
	p.logger.Info("the sink takes records again", "after", closedFor.Round(time.Millisecond))
	kept := p.retries[:0]
	for _, u := range p.retries {
		if len(u.items) > 1 {
			kept = append(kept, u)
			continue
		}
		p.backlog.release(u.objects[0])
	}
	clear(p.retries[len(kept):])
	p.retries = kept
}

// settle takes what was delivered or buried out of the backlog, and gives the objects back.
func (p *Pipeline) settle(u *unit, v *verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if v.keep {
		u.due = now.Add(max(v.delay, p.options.Retry.Initial))
		p.retries = append(p.retries, u)
		return
	}
	for n, i := range u.items {
		if v.outcomes[n] == failed {
			continue
		}
		reason := ""
		if v.outcomes[n] == dead {
			reason = deadReason(v.errs[n])
		} else {
			p.metrics.delivered(now.Sub(i.observed))
		}
		p.ledger.settle(i, reason)
		p.backlog.remove(i)
		p.vacate(i)
		p.forget(i)
	}
	for n := 0; n < len(u.objects); {
		o, anyFailed := u.objects[n], false
		for ; n < len(u.objects) && u.objects[n] == o; n++ {
			anyFailed = anyFailed || v.outcomes[n] == failed
		}
		p.logFailing(o, anyFailed, v.errs[n-1])
		o.suspect = anyFailed && (o.suspect || v.suspect)
		p.backlog.done(o, anyFailed, v.delay)
	}
	if p.ledger.waiting+p.ledger.gapsWaiting == 0 {
		select {
		case p.drained <- struct{}{}:
		default:
		}
	}
}

// logFailing warns of the first failure of an object that is held back while others go on.
func (p *Pipeline) logFailing(o *object, failing bool, err *sinks.Error) {
	if failing && !o.failing && !p.gate.closed {
		p.logger.Warn("an object's record fails; its later records wait behind it",
			"resource", o.ref.Resource, "namespace", o.ref.Namespace, "name", o.ref.Name, "err", err)
	}
	o.failing = failing
}
