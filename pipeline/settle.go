package pipeline

import (
	"context"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// maxRefused is how many different objects may be refused for good with nothing delivered between before the sink is
// blamed: a receiver that answers 400 to everything is misconfigured.
const maxRefused = 10

// failedRun is how many batches, or different objects that are sent alone, may fail with nothing delivered between before the
// sink is blamed although some objects are known to fail by themselves; failedFor is how long, for objects that are sent alone.
const (
	failedRun = 10
	failedFor = 5 * time.Second
)

// maxWholeTries is how often a batch that only the sink was blamed for is sent as it was.
const maxWholeTries = 3

// result of one record.
type result int

const (
	delivered result = iota
	failed           // stays at the head of its object
	dead             // to the dead letter
)

// outcome is what becomes of a batch after a call.
type outcome struct {
	results []result
	errs    []*sinks.Error
	// keep is set if the batch stays together and is tried again as it was.
	keep bool
	// isolate is set if its objects are sent alone until they get through.
	isolate bool
	// delay is the least that what failed waits.
	delay time.Duration
}

// deliver sends a batch and settles what can be settled.
func (p *Pipeline) deliver(ctx context.Context, b *batch) {
	errs := p.send(ctx, b)
	v := p.decide(b, errs, ctx.Err() != nil)
	p.writeDeadLetters(ctx, b, v)
	p.settle(b, v)
}

// send hands the records to the sink, except for those that could not be made, and returns an error for each.
func (p *Pipeline) send(ctx context.Context, b *batch) []*sinks.Error {
	errs := make([]*sinks.Error, len(b.items))
	var records []sinks.Record
	var indices []int
	for n, i := range b.items {
		switch {
		case i.err != nil:
			errs[n] = sinks.Classify(sinks.Permanent(sinks.ReasonEncode, i.err))
		case i.final != nil: // only its letter is missing
			errs[n] = i.final
		default:
			indices, records = append(indices, n), append(records, b.records[n])
		}
	}
	if len(records) == 0 {
		return errs
	}
	for n, err := range sinks.PerRecord(p.call(ctx, b, records), len(records)) {
		errs[indices[n]] = sinks.Classify(err)
	}
	return errs
}

// call makes one Deliver call once the sink has a slot for it. The wait is no part of the attempt: the time-out begins
// after it, and so does what the pipeline compares a failure with. If ctx ends first, nothing was sent.
func (p *Pipeline) call(ctx context.Context, b *batch, records []sinks.Record) error {
	if err := p.options.Slots.Acquire(ctx); err != nil {
		return err
	}
	defer p.options.Slots.Release()

	p.mu.Lock()
	if b.tries == 0 {
		b.mark = p.counts.successes
	}
	p.mu.Unlock()
	b.tries++
	ctx, cancel := context.WithTimeout(ctx, p.options.Limits.Timeout)
	defer cancel()
	return p.options.Sink.Deliver(ctx, records)
}

// decide decides what the errors of a call mean, and trips or resets the breaker. It is the one place that decides whose fault a
// failure is; the package's documentation gives the rule.
func (p *Pipeline) decide(b *batch, errs []*sinks.Error, stopping bool) *outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := &outcome{results: results(b, errs), errs: errs}
	probe := b.probe
	b.probe = false
	if probe {
		p.breaker.answered()
	}
	if stopping { // cancelled by us, which proves nothing about the sink; what was acknowledged still counts
		for n := range v.results {
			v.results[n] = min(v.results[n], failed)
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
		case b.items[n].err != nil || b.items[n].final != nil:
			continue // it was not sent
		case n > 0 && b.objects[n] == b.objects[n-1] && errs[n-1] != nil && !err.Permanent:
			continue // held back behind a record that failed, which proves nothing about the sink
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
	others := p.counts.successes > b.mark // something else got through, so the sink works
	b.mark = p.counts.successes

	switch {
	case acknowledged > 0:
		clear(p.refused)
		clear(p.failedAlone)
		p.failedBatches, p.lastSuccess = 0, p.now()
		p.resetBreaker()
	case refused+passing == 0: // nothing was sent
	case passing == 0 && (p.addRefused(b, errs) < maxRefused || others):
		if probe {
			p.breaker.fail(p.now(), 0, true)
		}
	case passing == 0:
		p.tripBreaker(first, 0, probe)
		v.keep = true
	case b.alone() && !others && p.onlyFailures(b):
		p.tripBreaker(first, v.delay, probe)
		v.isolate = true
	case b.alone(), v.delay == 0 && (others || p.mixed()):
		if b.alone() && others {
			p.provenAt = p.now()
		}
		v.keep = b.tries < 2 && len(b.items) > 1
		v.isolate = !v.keep
		if probe {
			p.breaker.fail(p.now(), 0, true)
		}
	default:
		p.tripBreaker(first, v.delay, probe)
		// A batch that has nothing beside it to show that the sink works must not stay together for ever: one poisoned
		// record in it would hold the others.
		v.keep = refused == 0 && (len(b.items) == 1 || b.tries < maxWholeTries)
	}
	p.countAttempts(b, v)
	return v
}

// results reads the errors record by record. Behind a record that failed nothing of its object goes to the dead
// letter before it.
func results(b *batch, errs []*sinks.Error) []result {
	out := make([]result, len(errs))
	for n, err := range errs {
		switch {
		case err == nil:
			out[n] = delivered
		case n > 0 && b.objects[n] == b.objects[n-1] && out[n-1] == failed:
			out[n] = failed
		case err.Permanent || b.items[n].final != nil:
			out[n] = dead
		default:
			out[n] = failed
		}
	}
	return out
}

// countAttempts sends what has used up its attempts to the dead letter; its batch cannot be kept then.
func (p *Pipeline) countAttempts(b *batch, v *outcome) {
	now := p.now()
	for n, i := range b.items {
		if v.results[n] == delivered || i.final != nil {
			continue
		}
		if n > 0 && b.objects[n] == b.objects[n-1] && v.results[n-1] != delivered {
			continue // it may have been held back, so this was no attempt of its own
		}
		i.attempts++
		if i.failed.IsZero() {
			i.failed = now
		}
		exhausted := p.options.Retry.Attempts > 0 && i.attempts >= p.options.Retry.Attempts
		if exhausted {
			v.results[n] = dead
			v.keep = false
		}
	}
}

// addRefused notes the objects that were refused for good, and returns how many there are since the last success.
func (p *Pipeline) addRefused(b *batch, errs []*sinks.Error) int {
	for n, err := range errs {
		if err != nil && err.Permanent && b.items[n].err == nil {
			p.refused[b.items[n].ref] = struct{}{}
		}
	}
	return len(p.refused)
}

// mixed counts a batch that failed with no success beside it, and reports whether its objects are to blame all the same: just
// now an isolated object failed while others got through, and this batch is among the first to fail since a success. When a sink
// goes away, no isolated object fails beside others.
func (p *Pipeline) mixed() bool {
	p.failedBatches++
	return !p.breaker.tripped && p.now().Sub(p.provenAt) < failedFor && p.failedBatches < failedRun
}

// onlyFailures counts an object that failed alone, and reports whether nothing but such failures has happened for a while.
func (p *Pipeline) onlyFailures(b *batch) bool {
	p.failedAlone[b.items[0].ref] = struct{}{}
	return len(p.failedAlone) >= failedRun && p.now().Sub(p.lastSuccess) > failedFor
}

// tripBreaker trips the breaker, or keeps it tripped.
func (p *Pipeline) tripBreaker(err *sinks.Error, retryAfter time.Duration, probe bool) {
	if p.breaker.fail(p.now(), retryAfter, probe) {
		p.logger.Warn("the sink fails; trying again with single records until one gets through", "err", err)
	} else {
		p.logger.Debug("the sink still fails", "err", err)
	}
}

// resetBreaker resets the breaker if it is tripped. Objects that probed in vain go into their own backoff; batches stay as they were.
func (p *Pipeline) resetBreaker() {
	trippedFor := p.now().Sub(p.breaker.since)
	if !p.breaker.succeed() {
		return
	}
	p.logger.Info("the sink takes records again", "after", trippedFor.Round(time.Millisecond))
	kept := p.retries[:0]
	for _, b := range p.retries {
		if len(b.items) > 1 {
			kept = append(kept, b)
			continue
		}
		o := b.objects[0]
		o.isolated = true // another one got through where it did not
		p.tried(o)
		p.backlog.done(o, true, 0)
		p.recycle(b)
	}
	clear(p.retries[len(kept):])
	p.retries = kept
}

// settle takes what was delivered or is dead out of the backlog, and gives the objects back.
func (p *Pipeline) settle(b *batch, v *outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if b.alone() {
		p.isolatedCalls--
	}
	if v.keep {
		b.due = now.Add(max(v.delay, p.options.Retry.Initial))
		p.retries = append(p.retries, b)
		p.park()
		return
	}
	for n, i := range b.items {
		if v.results[n] == failed {
			continue
		}
		reason := ""
		if v.results[n] == dead {
			reason = deadReason(v.errs[n])
		} else {
			p.metrics.delivered(now.Sub(i.observed))
		}
		p.counts.settle(i, reason)
		p.backlog.remove(i)
		p.release(i)
		p.forget(i)
	}
	for n := 0; n < len(b.objects); {
		o, anyFailed := b.objects[n], false
		for ; n < len(b.objects) && b.objects[n] == o; n++ {
			anyFailed = anyFailed || v.results[n] == failed
		}
		p.logFailing(o, anyFailed, v.errs[n-1])
		o.isolated = anyFailed && (o.isolated || v.isolate)
		p.tried(o)
		p.backlog.done(o, anyFailed, v.delay)
	}
	p.recycle(b)
	if p.counts.Waiting+p.counts.GapsWaiting == 0 {
		select {
		case p.drained <- struct{}{}:
		default:
		}
	}
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
