package pipeline

import (
	"cmp"
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// While the memory is full, the log is not read on, and the sink may refuse all that is in memory. So candidates from beyond the
// cursor are sent: the first delta of an object that has none in memory, or the first notice of a watch; nothing behind it in that
// watch is one. While the breaker is tripped, every second probe is a candidate. Otherwise they are sent one by one, while all that
// may be sent in memory waits for a backoff, or some namespaces are suspect: candidates of others, or of those that get through. One
// takes no room in the backlog. If it fails it stays in the log, as if unread, and is tried again after a backoff; else it is skipped
// when the cursor comes to it.

// maxDraws is how many candidates of suspect namespaces are passed over for one of another.
const maxDraws = 32

// drawPause is how long after that many others are drawn at least, or twenty times as long as it took.
const drawPause = time.Second

// scanBytes is how much of the log is scanned at most before the next candidate is chosen.
const scanBytes = 8 << 20

// searchPause is how long the candidates are not searched for one that may be sent after there was none.
const searchPause = 50 * time.Millisecond

// lookAhead finds the next candidate, if one is needed.
func (p *Pipeline) lookAhead(ctx context.Context) error {
	s := &p.scan
	for left := scanBytes; ctx.Err() == nil; left -= readChunk {
		p.mu.Lock()
		l := &p.log
		cursor, written := l.cursor, l.written
		wanted := p.breaker.tripped || len(p.backlog.suspects) > 0 || len(p.backlog.failing) > 0 && p.backlog.queue.Len() == 0
		if i := l.candidate; i != nil && p.backlog.turns.of(i.namespace()) > 0 && s.end < written {
			l.candidate = nil // what was written since may be of a namespace that had no probe yet
		}
		needed := wanted && l.candidate == nil && l.behind > 0 && cursor < written && !p.readable()
		rescan := l.rescan || slices.ContainsFunc(l.settledNotices, func(watch string) bool { return s.noticed[watch] })
		if needed || l.behind == 0 {
			l.rescan, l.settledNotices = false, nil
		}
		if l.behind == 0 && s.seen != nil {
			p.scan, p.nextScan = scan{}, scan{}
		}
		successes := p.counts.successes
		p.mu.Unlock()
		if !needed {
			return nil
		}
		s.stale = s.stale || rescan
		if s.end <= cursor { // all of it was read meanwhile
			p.scan, p.nextScan = p.newScan(cursor, written, successes), scan{}
		}
		if s.end >= written || left <= 0 && len(s.firsts) > 0 {
			err := p.chooseAndScan(cursor, written, successes, left)
			if (s.end < written || p.nextScan.end > cursor) && !p.hasCandidate() {
				p.log.wakeReader() // what may be sent is perhaps beyond
			}
			return err
		}
		if err := p.scanOn(s, written); err != nil {
			return err
		}
	}
	return nil
}

// chooseAndScan chooses a candidate of a scan, and goes on with the one that takes its place: by one chunk, or by up to left bytes if there is
// no candidate.
func (p *Pipeline) chooseAndScan(cursor, written, successes uint64, left int) error {
	if err := p.chooseCandidate(cursor); err != nil {
		return err
	}
	if p.hasCandidate() {
		left = 0
	}
	for again := true; again; again = left > 0 && p.nextScan.end > cursor {
		if err := p.scanAgain(cursor, written, successes); err != nil {
			return err
		}
		left -= readChunk
	}
	if p.hasCandidate() {
		return nil
	}
	return p.chooseCandidate(cursor)
}

func (p *Pipeline) hasCandidate() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.candidate != nil
}

// scanAgain goes on with a scan that takes the place of the one that is complete. It finds what that one took for another object, or forgot,
// and the next change of an object of which one was sent. It begins once the sink has taken something since the other one began, or
// when the other one passed what may be sent now.
func (p *Pipeline) scanAgain(cursor, written, successes uint64) error {
	s, next := &p.scan, &p.nextScan
	if next.end <= cursor { // there is none, or all of it was read meanwhile
		if s.end < written || !s.stale && (successes == s.successes || p.now().Sub(s.begun) < s.againAfter()) {
			*next = scan{}
			return nil
		}
		s.stale = false
		*next = p.newScan(cursor, written, successes)
	}
	if err := p.scanOn(next, written); err != nil || next.end < next.until {
		return err
	}
	next.stale = s.stale // by what was sent or read since it began
	*s, *next = *next, scan{}
	return nil
}

// scanOn reads on for a scan.
func (p *Pipeline) scanOn(s *scan, written uint64) error {
	begun := p.now()
	entries, err := p.options.Log.Read(s.end, readChunk)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.note(entries, written, p.log.taken)
	s.took += p.now().Sub(begun)
	return nil
}

func (p *Pipeline) newScan(from, written, successes uint64) scan {
	s := newScan(from)
	s.begun, s.until, s.successes = p.now(), written, successes
	return s
}

// chooseCandidate reads one of the entries that were found, by chance, rather a new one than an old one: changes that were
// not tried yet are at the end, and none may be good among the last.
func (p *Pipeline) chooseCandidate(cursor uint64) error {
	s, begun := &p.scan, p.now()
	s.comeBack()
	passed, _ := slices.BinarySearchFunc(s.firsts, cursor, func(e scanned, cursor uint64) int { return cmp.Compare(e.seq, cursor) })
	for _, one := range s.firsts[:passed] {
		s.kept[one.namespace]--
	}
	s.firsts = s.firsts[passed:]
	p.mu.Lock()
	left := maps.Clone(p.log.left)
	p.mu.Unlock()
	s.forgetLeft(left)
	for tries := 0; len(s.firsts) > 0 && tries < maxDraws; tries++ {
		at := p.draw()
		if at < 0 {
			return nil
		}
		one := s.firsts[at]
		entries, err := p.options.Log.Read(one.seq, 1)
		if err != nil {
			return err
		}
		there := len(entries) > 0 && entries[0].Seq == one.seq
		if there {
			i := p.logged(entries[0])
			p.mu.Lock()
			p.log.failedAhead[one.seq].restore(i)
			usable := p.usable(i)
			if usable {
				p.log.candidate = i
				p.signal()
			}
			there = !p.log.taken[one.seq] // else it is settled
			p.mu.Unlock()
			if usable {
				return nil
			}
		}
		s.firsts = slices.Delete(s.firsts, at, at+1)
		if there {
			s.waiting = append(s.waiting, one)
		} else {
			s.kept[one.namespace]--
		}
	}
	if now := p.now(); len(s.firsts) > 0 && !now.Before(p.drawAgain) {
		wait := max(drawPause, 20*now.Sub(begun))
		p.drawAgain = now.Add(wait)
		time.AfterFunc(wait, p.log.wakeReader)
	}
	return nil
}

// draw returns which of the entries that were found is the next candidate, rather one whose namespace is not suspect, and had no probe
// for long; -1 for none: one that is suspect is only sent as a probe.
func (p *Pipeline) draw() (at int) {
	s, best, now := &p.scan, -1, p.now()
	p.mu.Lock()
	turns, tripped := &p.backlog.turns, p.breaker.tripped
	for range maxDraws {
		at = len(s.firsts) - 1 - int(float64(len(s.firsts))*math.Pow(rand.Float64(), 4)) //nolint:gosec // no secret
		one := s.firsts[at]
		if p.drawsFrom(one.namespace) && !p.backsOff(one.seq, now) && (best < 0 || turns.compare(one.namespace, s.firsts[best].namespace) < 0) {
			best = at
		}
	}
	others := map[string]bool{}
	if best < 0 && !now.Before(s.noneUntil) {
		for namespace, kept := range s.kept {
			if kept > 0 && p.drawsFrom(namespace) {
				others[namespace] = true
			}
		}
	}
	p.mu.Unlock()
	// Perhaps there are few among many that may not be sent. While the breaker is tripped that is tried half of the time: the few may be
	// refused too, and nothing shows it.
	if len(others) > 0 && (!tripped || rand.IntN(2) == 0) { //nolint:gosec // no secret
		there := false // else all of them wait
		for n := range slices.Backward(s.firsts) {
			if !others[s.firsts[n].namespace] {
				continue
			}
			if there = true; p.maySend(s.firsts[n].seq, now) {
				return n
			}
		}
		s.noneUntil = now.Add(searchPause)
		if there {
			time.AfterFunc(searchPause, p.log.wakeReader)
		}
	}
	if best < 0 && tripped {
		return at
	}
	return best
}

// drawsFrom reports whether a candidate of a namespace may be sent. p.mu is held.
func (p *Pipeline) drawsFrom(namespace string) bool {
	suspect, turns := p.backlog.suspectTurn(namespace), &p.backlog.turns
	if p.breaker.tripped {
		return (!suspect || !turns.succeeded[namespace].IsZero()) && (!p.breaker.onlyUnprobed(p.now()) || turns.unprobed(namespace))
	}
	return p.log.aheadCalls.Of(namespace) < max(1, p.options.Limits.Concurrency/4) && p.mayCallAhead(namespace, suspect)
}

// mayCallAhead reports whether calls under way leave one for a candidate. If nothing of its namespace got through lately, the sink may hang
// on it, too; if one of it failed, it does not get the last call. Of a suspect namespace something must have got through.
func (p *Pipeline) mayCallAhead(namespace string, suspect bool) bool {
	now, turns, ahead, calls := p.now(), &p.backlog.turns, p.log.aheadCalls.Of(namespace), p.options.Limits.Concurrency
	lately := turns.lately(namespace, now)
	switch {
	case suspect && (turns.succeeded[namespace].IsZero() || !lately && ahead > 0):
		return false
	case suspect: // what is in memory has its turn at each call that ends, before a candidate is read
		return p.mayCallApart(namespace) || lately && ahead == 0 && p.mayCallBeside(namespace)
	case lately || calls == 1:
		return true
	case now.Sub(p.log.failedOf[namespace]) < latelyBefore:
		return p.apartCalls.Room(namespace, calls-1)
	}
	return p.mayCallBeside(namespace)
}

// backsOff reports whether a candidate failed, and waits for its next attempt. p.mu is held.
func (p *Pipeline) backsOff(seq uint64, now time.Time) bool {
	return !p.breaker.tripped && now.Before(p.log.failedAhead[seq].until)
}

func (p *Pipeline) maySend(seq uint64, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.backsOff(seq, now)
}

// usable reports whether a delta beyond the cursor may be sent now. p.mu is held.
func (p *Pipeline) usable(i *item) bool {
	_, taken := p.log.taken[i.seq]
	return i.seq >= p.log.cursor && !taken && !p.backlog.waits(i) && p.backlog.objects[i.ref] == nil && p.log.left[i.namespace()] == nil
}

// failedAhead is when a candidate that failed may be sent again, and how long it waits for that.
type failedAhead struct {
	until time.Time
	wait  time.Duration
	// refused is set on a mark for which there was no place, and refusedAt is the number of deliveries that had succeeded by then.
	refused   bool
	refusedAt uint64
	// final, attempts and failed are the item's.
	final    *sinks.Error
	attempts int
	failed   time.Time
}

// restore gives an item that can never be delivered what was known when it was a candidate: it is not sent again.
func (f failedAhead) restore(i *item) {
	if f.final != nil {
		i.final, i.attempts, i.failed = f.final, f.attempts, f.failed
	}
}

// restoreAhead does that for an item that comes into memory.
func (p *Pipeline) restoreAhead(i *item) {
	p.log.failedAhead[i.seq].restore(i)
	delete(p.log.failedAhead, i.seq)
}

// maxFailedAhead bounds the candidates that have a backoff.
const maxFailedAhead = 20 * maxFirsts

// backOffAhead notes that a candidate failed. A probe needs no backoff: the breaker has one. p.mu is held.
func (p *Pipeline) backOffAhead(i *item, v *outcome) {
	l, now, seq := &p.log, p.now(), i.seq
	if len(l.failedAhead) >= maxFailedAhead && !now.Before(l.sweepAhead) {
		l.sweepAhead = now.Add(time.Second)
		maps.DeleteFunc(l.failedAhead, func(_ uint64, failed failedAhead) bool { return now.After(failed.until) })
	}
	if !v.probe {
		if len(l.failedOf) >= maxSucceeded {
			maps.DeleteFunc(l.failedOf, func(_ string, at time.Time) bool { return now.Sub(at) > latelyBefore })
		}
		l.failedOf[i.namespace()] = now
	}
	failed, has := l.failedAhead[seq]
	if !has && len(l.failedAhead) >= maxFailedAhead || v.probe && i.final == nil {
		return
	}
	if failed.final, failed.attempts, failed.failed = i.final, i.attempts, i.failed; !v.probe {
		failed.wait = max(p.options.Retry.Initial, min(2*failed.wait, p.options.Retry.Max))
		delay := max(failed.wait, v.delay)
		failed.until = now.Add(delay)
		time.AfterFunc(delay, l.wakeReader)
	}
	l.failedAhead[seq] = failed
}

// fillAhead fills a batch with the candidate, if there is one. p.mu is held.
func (p *Pipeline) fillAhead(b *batch) {
	i := p.log.candidate
	if i == nil {
		return
	}
	p.log.candidate = nil
	p.log.wakeReader() // to find the next
	suspect := p.backlog.suspectTurn(i.namespace())
	if p.usable(i) && (b.probe || p.mayCallAhead(i.namespace(), suspect)) {
		b.suspect = !b.probe && (suspect || !p.backlog.turns.lately(i.namespace(), p.now()))
		if b.probe {
			p.backlog.turns.probe(i.namespace())
		}
		p.log.taken[i.seq] = false
		p.log.aheadCalls.Add(i.namespace(), 1)
		b.ahead = p.appendRecord(b, &objectQueue{ref: i.ref}, i)
	}
}

// settleAhead settles a batch that came from beyond the cursor. p.mu is held.
func (p *Pipeline) settleAhead(b *batch, v *outcome) {
	l, i := &p.log, b.items[0]
	l.aheadCalls.Add(i.namespace(), -1)
	if v.keep || v.results[0] == failed {
		delete(l.taken, i.seq)
		if !v.cancelled {
			p.backOffAhead(i, v)
		}
	} else {
		delete(l.failedAhead, i.seq)
		delete(l.failedOf, i.namespace())
		if i.seq < p.options.Logged.Next { // else it was counted when it was taken
			p.counts.restored(i)
		}
		p.countSettled(i, v.results[0], v.errs[0], p.now())
		p.forget(i)
		l.taken[i.seq] = true
		if left := l.left[i.namespace()]; left != nil { // since it was sent
			left.taken[i.seq] = true
		}
		l.behind--
		if i.seq == l.cursor {
			l.nextSize = 0 // it needs no room any more
		}
		l.noticeSettled(i)
	}
	p.recycle(b)
	l.wakeReader()
}

// forgetGone forgets what commits removed from the log since: the reader has read nothing that holds it. While the cursor stands still,
// any number of candidates may be sent. p.mu is held.
func (p *Pipeline) forgetGone() {
	for _, seq := range p.log.gone {
		delete(p.log.taken, seq)
	}
	p.log.gone = nil
}

// noticeSettled notes that what is behind a notice in its watch may be sent.
func (l *logState) noticeSettled(i *item) {
	if i.notice() && l.behind > 0 && !slices.Contains(l.settledNotices, i.watch) {
		l.settledNotices = append(l.settledNotices, i.watch)
	}
}
