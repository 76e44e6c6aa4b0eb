package pipeline

import (
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

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
	// cancelled is set if it was us who ended the call.
	cancelled bool
	// apart is set if its objects are sent apart until they get through: with others of their namespace, or alone if there were none.
	apart bool
	// probe is set if the batch was a probe.
	probe bool
	// delay is the least that what failed waits.
	delay time.Duration
}

// maxRefused is how many different objects may be refused for good with nothing delivered between before the sink is
// blamed: a receiver that answers 400 to everything is misconfigured. Once sources wait for room, a probe that is refused goes to
// the dead letter: nothing else could come that would show that the sink works, and whoever filled the memory with such records
// would stop the pipeline.
const maxRefused = 10

// failedRun calls in a row that fail, or as many different objects that fail alone, blame the sink although some objects are known to
// fail by themselves. failedFor is how long that counts as known, how long nothing may be delivered before objects that fail alone
// blame the sink, and how long a namespace stays suspect behind a record that was refused for good.
const (
	failedRun = 10
	failedFor = 5 * time.Second
)

// maxWholeTries is how often a batch that only the sink was blamed for is sent as it was.
const maxWholeTries = 3

// decide classifies the result of a call, and trips or resets the breaker. It is the only place that decides whether the sink or
// the records are to blame; doc.go has the rule.
func (p *Pipeline) decide(b *batch, errs []*sinks.Error, stopping, cut bool) *outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !stopping && !cut {
		p.refuseMarks(b, errs)
	}
	probe := b.probe
	v := &outcome{results: results(b, errs), errs: errs, probe: probe}
	b.probe = false
	if probe {
		p.breaker.answered()
	}
	if stopping || cut { // cancelled by us, which proves nothing about the sink; what was acknowledged still counts
		for n := range v.results {
			v.results[n] = min(v.results[n], failed)
		}
		// Else it is sent once more as it was: the sink may have it, and then recognizes it.
		v.cancelled, v.keep = true, !stopping && !slices.Contains(v.results, delivered)
		if v.keep {
			b.tries--
		}
		return v
	}

	var acknowledged, refused, transient int
	var first *sinks.Error
	for n, err := range errs {
		switch {
		case err == nil:
			acknowledged++
			p.largest = max(p.largest, b.records[n].Size())
			continue
		case b.items[n].needsLetter():
			continue // it was not sent
		case !err.Permanent && b.behind(n) >= 0 && errs[b.behind(n)] != nil:
			continue // held back behind a record that failed, which proves nothing about the sink
		case err.Permanent:
			refused++
		default:
			transient++
			v.delay = max(v.delay, min(err.RetryAfter, sinks.MaxRetryAfter))
		}
		if first == nil {
			first = err
		}
		p.metrics.failed(err.Reason)
		p.lastErr = err.Error()
	}
	others := p.counts.successes > b.successesBefore // something else got through, so the sink works
	b.successesBefore = p.counts.successes

	switch {
	case acknowledged > 0:
		clear(p.refused)
		clear(p.failedAlone)
		p.failedCalls, p.lastSuccess = 0, p.now()
		p.resetBreaker()
		p.backlog.turns.success(b, v.results, p.now())
		took := p.now().Sub(b.begun)
		if transient > 0 {
			p.recordsBlamedAt = p.now()
			v.apart = took > max(slowCall, 2*p.wholeCall) && p.blameNamespaces(b, v.results)
		} else if refused == 0 {
			p.wholeCall = took
		}
	case refused+transient == 0: // nothing was sent
	case transient == 0 && (p.addRefused(b, errs) < maxRefused || others || probe && p.budget.full):
		if probe && p.breaker.tripped {
			p.breaker.fail(p.now(), 0, true)
		}
	case transient == 0:
		p.tripBreaker(first, 0, probe)
		v.keep = true
	case b.alone() && !others && p.onlyFailures(b):
		p.tripBreaker(first, v.delay, probe)
		v.apart = true
	case b.alone(), others, v.delay == 0 && p.blameObjects():
		if b.alone() && others {
			p.recordsBlamedAt = p.now()
		}
		tries := 2
		if v.delay > 0 { // a sink that limits the rate of all calls takes the batch sooner or later
			tries = maxWholeTries
		}
		v.keep = b.tries < tries && len(b.items) > 1
		v.apart = !v.keep
		if v.apart && b.severalNamespaces() {
			v.delay = 0 // it was requested for some of them only
		}
		if probe && p.breaker.tripped {
			p.breaker.fail(p.now(), 0, true)
		}
	default:
		p.tripBreaker(first, v.delay, probe)
		// A batch that has nothing beside it to show that the sink works must not stay together for ever: one poisoned
		// record in it would hold the others.
		v.keep = refused == 0 && (len(b.items) == 1 || b.tries < maxWholeTries)
	}
	p.countAttempts(b, v)
	if v.keep && len(b.items) == 1 && v.results[0] == failed && b.objects[0].back && len(p.log.returning.turns) > 0 {
		v.keep, v.apart = false, true // it gives its place to another that waits to be read back
	}
	if !v.keep {
		p.awaitLetters(b, v)
	}
	return v
}

// slowCall is from when on a call that fails in part is slow, unless others are. A broker answers for each record, and the call takes as
// long as the slowest: with records on which it hangs in every batch, all others would wait for them.
const slowCall = time.Second

// blameNamespaces reports whether what failed of a call makes its namespaces suspect: there are no notices, and they are at most half of
// the call's namespaces, or its only one, or nothing got through of them lately. A fault that they share, as of one broker, is no reason to
// send each apart.
func (p *Pipeline) blameNamespaces(b *batch, results []result) bool {
	now, succeed := p.now(), false
	all, fail := map[string]struct{}{}, map[string]struct{}{}
	for n, i := range b.items {
		all[i.namespace()] = struct{}{}
		if results[n] != failed {
			continue
		}
		if i.notice() {
			return false
		}
		fail[i.namespace()] = struct{}{}
		succeed = succeed || p.backlog.turns.lately(i.namespace(), now)
	}
	return len(all) == 1 && p.options.Limits.Concurrency > 3 || 2*len(fail) <= len(all) || !succeed
}

// refuseMarks makes the errors of marks permanent for which there is no place, while there is one for other records: something
// got through since the mark was first refused, or the first mark of the same snapshot went to the dead letter like that.
func (p *Pipeline) refuseMarks(b *batch, errs []*sinks.Error) {
	for n, i := range b.items {
		if i.mark == nil || !noPlace(errs[n]) {
			continue
		}
		s := p.counts.snapshots[i.watch]
		if i.released && p.counts.successes > i.releasedAt || s.refused {
			err := *errs[n]
			err.Permanent, s.refused = true, true
			errs[n], p.counts.snapshots[i.watch] = &err, s
		}
	}
}

// noPlace reports whether an error says that there is no place for a record, or no right to it. A mark goes where placeholders of
// an object lead to `_`, so it may be the only record that fails like that.
func noPlace(err *sinks.Error) bool {
	return err != nil && (err.Reason == sinks.ReasonNotFound || err.Reason == sinks.ReasonUnauthorized)
}

// results reads the errors record by record. Behind a record that failed nothing of its object goes to the dead
// letter before it.
func results(b *batch, errs []*sinks.Error) []result {
	out := make([]result, len(errs))
	for n, err := range errs {
		switch {
		case err == nil:
			out[n] = delivered
		case b.behind(n) >= 0 && out[b.behind(n)] == failed:
			out[n] = failed
		case err.Permanent || b.items[n].final != nil:
			out[n] = dead
		default:
			out[n] = failed
		}
	}
	return out
}

// addRefused notes the objects that were refused for good, and returns how many there are since the last success. A record that
// is too large, and larger than all that were delivered, says nothing about the sink: anyone can make such objects.
func (p *Pipeline) addRefused(b *batch, errs []*sinks.Error) int {
	for n, err := range errs {
		if err != nil && err.Permanent && b.items[n].err == nil &&
			(err.Reason != sinks.ReasonTooLarge || p.largest == 0 || b.records[n].Size() <= p.largest) {
			p.refused[b.items[n].ref] = struct{}{}
		}
	}
	return len(p.refused)
}

// blameObjects counts a batch that failed while nothing was delivered, and reports whether its objects are to blame all the same:
// in the last failedFor the breaker was reset, or an isolated object failed while others were delivered, and fewer than
// failedRun calls failed since. When a sink goes away, no isolated object fails while others are delivered.
func (p *Pipeline) blameObjects() bool {
	p.failedCalls++
	justNow := p.now().Sub(p.recordsBlamedAt) < failedFor
	return !p.breaker.tripped && justNow && p.failedCalls < failedRun
}

// onlyFailures counts an object that failed alone, and reports whether nothing but such failures has happened for a while.
func (p *Pipeline) onlyFailures(b *batch) bool {
	p.failedAlone[b.items[0].ref] = struct{}{}
	p.failedCalls++
	return len(p.failedAlone) >= failedRun && p.now().Sub(p.lastSuccess) > failedFor
}

// tripBreaker trips the breaker, or keeps it tripped.
func (p *Pipeline) tripBreaker(err *sinks.Error, retryAfter time.Duration, probe bool) {
	if p.breaker.fail(p.now(), retryAfter, probe) {
		p.logger.Warn("the sink fails; trying again with single records until one gets through", "err", err)
		p.backlog.unprobed = true
		p.announceFreed() // a snapshot may be read on
	} else {
		p.logger.Debug("the sink still fails", "err", err)
	}
}

// resetBreaker resets the breaker if it is tripped. Objects whose probes failed are isolated; batches wait for their retry.
func (p *Pipeline) resetBreaker() {
	trippedFor := p.now().Sub(p.breaker.since)
	if !p.breaker.succeed() {
		return
	}
	p.backlog.turns.reset()
	p.recordsBlamedAt = p.now() // what failed before may fail now by itself
	p.logger.Info("the sink takes records again", "after", trippedFor.Round(time.Millisecond))
	kept := p.retries[:0]
	for _, b := range p.retries {
		if len(b.items) > 1 {
			b.turn = 0
			kept = append(kept, b)
			continue
		}
		o := b.objects[0]
		o.isolated = true // another one got through where it did not
		p.backlog.setApart(o, true)
		p.done(o, true, b.due.Sub(p.now()))
		p.recycle(b)
	}
	clear(p.retries[len(kept):])
	p.retries = kept
	p.backlog.again = append(p.apart.takeClean(p.backlog.suspects), p.backlog.again...)
}

// countAttempts sends what has used up its attempts to the dead letter; its batch cannot be kept then.
func (p *Pipeline) countAttempts(b *batch, v *outcome) {
	now := p.now()
	for n, i := range b.items {
		if v.results[n] == delivered || i.final != nil {
			continue
		}
		if before := b.behind(n); before >= 0 && v.results[before] != delivered {
			continue // it may have been held back, so this was no attempt of its own
		}
		i.attempts++
		if i.failed.IsZero() {
			i.failed = now
		}
		p.noteAttempt(i)
		exhausted := p.options.Retry.Attempts > 0 && i.attempts >= p.options.Retry.Attempts
		if exhausted {
			v.results[n] = dead
			v.keep = false
		}
	}
}

// awaitLetters makes the namespaces suspect of which letters are to be written: that may take long, and so may a batch that is sent in
// halves. While they are written, the call counts as one of a suspect namespace.
func (p *Pipeline) awaitLetters(b *batch, v *outcome) {
	for n, i := range b.items {
		if v.results[n] != dead {
			continue
		}
		p.backlog.setRefused(i, p.now())
		p.backlog.setApart(b.objects[n], true)
		if !b.suspect {
			b.suspect = true
			p.apartCalls.Add(b.items[0].namespace(), 1)
		}
	}
}
