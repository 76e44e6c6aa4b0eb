package pipeline

import (
	"context"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// permanentRun is how many different objects may be refused for good with nothing delivered between before the sink is
// blamed: a receiver that answers 400 to everything is misconfigured.
const permanentRun = 10

// failedRun is how many units, or different objects that travel alone, may fail with nothing delivered between before the
// sink is blamed although some objects are known to fail by themselves; failedFor is how long, for objects that travel alone.
const (
	failedRun = 10
	failedFor = 5 * time.Second
)

// sealedTries is how often a batch that only the sink was blamed for is sent as it was.
const sealedTries = 3

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
		switch {
		case i.err != nil:
			errs[n] = sinks.Classify(sinks.Permanent(sinks.ReasonEncode, i.err))
		case i.final != nil: // only its letter is missing
			errs[n] = i.final
		default:
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
	if probe {
		p.gate.answered()
	}
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
		case u.items[n].err != nil || u.items[n].final != nil:
			continue // it was not sent
		case n > 0 && u.objects[n] == u.objects[n-1] && errs[n-1] != nil && !err.Permanent:
			continue // held back behind a record that failed, which says nothing of the sink
		case err.Permanent:
			refused++
		default:
			passing++
			v.delay = max(v.delay, min(err.RetryAfter, sinks.MaxRetryAfter))
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
		clear(p.refused)
		clear(p.failedAlone)
		p.failedUnits, p.lastSuccess = 0, p.now()
		p.open()
	case refused+passing == 0: // nothing was sent
	case passing == 0 && (p.noteRefused(u, errs) < permanentRun || others):
		if probe {
			p.gate.fail(p.now(), 0, true)
		}
	case passing == 0:
		p.blameSink(first, 0, probe)
		v.keep = true
	case u.alone() && !others && p.onlyFailures(u):
		p.blameSink(first, v.delay, probe)
		v.suspect = true
	case u.alone(), v.delay == 0 && (others || p.mixed()):
		v.keep = u.tries < 2 && len(u.items) > 1
		v.suspect = !v.keep
		if probe {
			p.gate.fail(p.now(), 0, true)
		}
	default:
		p.blameSink(first, v.delay, probe)
		// A batch that has nothing beside it to show that the sink works must not stay together for ever: one poisoned
		// record in it would hold the others.
		v.keep = refused == 0 && (len(u.items) == 1 || u.tries < sealedTries)
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
		case err.Permanent || u.items[n].final != nil:
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
		if v.outcomes[n] == delivered || i.final != nil {
			continue
		}
		if n > 0 && u.objects[n] == u.objects[n-1] && v.outcomes[n-1] != delivered {
			continue // it may have been held back, so this was no attempt of its own
		}
		i.attempts++
		if i.failed.IsZero() {
			i.failed = now
		}
		exhausted := p.options.Retry.Attempts > 0 && i.attempts >= p.options.Retry.Attempts
		if exhausted {
			v.outcomes[n] = dead
			v.keep = false
		}
	}
}

// noteRefused notes the objects that were refused for good, and returns how many there are since the last success.
func (p *Pipeline) noteRefused(u *unit, errs []*sinks.Error) int {
	for n, err := range errs {
		if err != nil && err.Permanent && u.items[n].err == nil {
			p.refused[u.items[n].ref] = struct{}{}
		}
	}
	return len(p.refused)
}

// mixed counts a unit that failed with no success beside it, and reports whether its objects are to blame all the same: some
// objects are known to fail while others get through, and these are the first to fail since.
func (p *Pipeline) mixed() bool {
	p.failedUnits++
	return !p.gate.closed && len(p.backlog.failing) > 0 && p.failedUnits < failedRun
}

// onlyFailures counts an object that failed alone, and reports whether nothing but such failures has happened for a while.
func (p *Pipeline) onlyFailures(u *unit) bool {
	p.failedAlone[u.items[0].ref] = struct{}{}
	return len(p.failedAlone) >= failedRun && p.now().Sub(p.lastSuccess) > failedFor
}

// blameSink closes the gate, or keeps it closed.
func (p *Pipeline) blameSink(err *sinks.Error, retryAfter time.Duration, probe bool) {
	if p.gate.fail(p.now(), retryAfter, probe) {
		p.logger.Warn("the sink fails; trying again with single records until one gets through", "err", err)
	} else {
		p.logger.Debug("the sink still fails", "err", err)
	}
}

// open opens the gate if it is closed. Objects that probed in vain go into their own backoff; batches stay as they were.
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
		o := u.objects[0]
		o.suspect = true // another one got through where it did not
		p.backlog.done(o, true, 0)
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
	u.recycle()
	if p.ledger.waiting+p.ledger.gapsWaiting == 0 {
		select {
		case p.drained <- struct{}{}:
		default:
		}
	}
}

// maxTold is how many objects may fail at once before further ones are no news.
const maxTold = 10

// logFailing warns of the first failure of an object that is held back while others go on.
func (p *Pipeline) logFailing(o *object, failing bool, err *sinks.Error) {
	if failing && !o.failing && !p.gate.closed {
		log := p.logger.Warn
		if len(p.backlog.failing) >= maxTold { // a missing topic fails all of its objects
			log = p.logger.Debug
		}
		log("an object's record fails; its later records wait behind it",
			"resource", delta.ResourceName(o.ref.Resource), "namespace", o.ref.Namespace, "name", o.ref.Name, "err", err)
	}
	o.failing = failing
}
