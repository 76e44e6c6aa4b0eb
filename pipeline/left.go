package pipeline

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// A failing object takes about 1 KB of memory, even if its records are parked in the log: with enough objects that the sink refuses, a
// tenant could fill the memory. So once too many objects of a namespace fail, or too much of it is parked (stuckIn), its further changes
// are left behind in the log: the cursor passes them, and those of others come into memory. Once at most half as much is stuck, what was
// left is read, in order. Once all of it is in memory, the namespace is no longer left behind. Notices are never left behind.

const (
	// maxFailing is how many objects of a namespace may fail before its further changes are left behind.
	maxFailing = 10_000
	// leastFailing is how many may fail in any case.
	leastFailing = 10
	// maxParkedShare is the part of the bound of the backlog that what is parked of a namespace may count before that: beyond half, with
	// the failing records in memory, the log is not read on.
	maxParkedShare = 3.0 / 8
)

// stuck is what of a namespace waits for failing records.
type stuck struct {
	objects int // that fail
	parked  int // records
}

// leftBehind is what of a namespace was left behind: all its deltas in the log from a number on, up to the cursor.
type leftBehind struct {
	namespace string
	from      uint64
	count     uint64
	// observed is when the first was, or one shortly before it.
	observed time.Time
	// nextSize is the size of the first, if it was read and there was no memory for it.
	nextSize int64
	// taken are the numbers of entries that were sent from beyond the cursor, and are no part of it if they are settled.
	taken map[uint64]bool
}

// countStuck notes that more or fewer objects of a namespace fail, or that more or fewer records of it are parked.
func (b *backlog) countStuck(namespace string, objects, parked int) {
	s := b.stuckOf[namespace]
	s.objects += objects
	s.parked += parked
	if b.stuckOf[namespace] = s; s == (stuck{}) {
		delete(b.stuckOf, namespace)
	}
}

// stuckBound bounds what is stuck, in objects or in bytes.
type stuckBound struct {
	least   float64 // up to which a namespace is not left behind for others
	one     float64 // of one namespace
	crowded float64 // of all, from which on a namespace has only its part of what is free
	all     float64 // of all
}

// spareParts is into how many parts what is free is divided once all have so much: so many namespaces have room beside each other.
const spareParts = 64

// exceeded reports whether a namespace has too much, or a part of that, of so much in all. Once it is left behind it waits until all have
// a twelfth less: else it would be left behind again at once.
func (b stuckBound) exceeded(own, all, part float64) bool {
	crowded := b.crowded
	if part < 1 {
		crowded -= crowded / 12
	}
	most := b.one
	if all > crowded {
		most = (b.all - all) / spareParts
	}
	return own > 0 && own >= max(b.least, part*most)
}

// stuckIn reports whether so much of a namespace is stuck that its changes are left behind, or a part of that. p.mu is held.
func (p *Pipeline) stuckIn(namespace string, part float64) bool {
	s, memory := p.backlog.stuckOf[namespace], float64(p.options.MaxBytes)
	objects := float64(p.maxFailing)
	failing := stuckBound{least: min(leastFailing, objects), one: objects, crowded: 3 * objects, all: 4 * objects}
	parked := stuckBound{one: maxParkedShare * memory, crowded: maxParkedShare * memory, all: 7.0 / 16 * memory}
	return failing.exceeded(float64(s.objects), float64(len(p.backlog.failing)), part) ||
		parked.exceeded(float64(s.parked*parkedSize), float64(p.budget.parked), part)
}

// leaves reports whether an item that would come into memory now is left behind instead. p.mu is held.
func (p *Pipeline) leaves(i *item) bool {
	return p.options.Log != nil && !i.notice() && (p.log.left[i.namespace()] != nil || p.stuckIn(i.namespace(), 1))
}

// leave leaves an item behind. What no commit has written stays in the buffer until then. p.mu is held.
func (p *Pipeline) leave(i *item) {
	left := p.log.left[i.namespace()]
	if left == nil {
		left = &leftBehind{namespace: i.namespace(), from: i.seq, observed: i.observed, taken: maps.Clone(p.log.taken)}
		p.log.left[left.namespace] = left
		p.logger.Warn("too many objects of the namespace fail; its further changes wait in the log",
			"namespace", left.namespace, "failing", p.backlog.stuckOf[left.namespace].objects, "failingInAll", len(p.backlog.failing))
	}
	left.count++
}

// leftEnd is up to where changes were left behind. p.mu is held.
func (p *Pipeline) leftEnd() uint64 {
	if p.log.behind > 0 {
		return p.log.cursor
	}
	return p.log.next
}

// leftReadable returns a namespace of which may be read what was left behind, nil if there is none. What is at the cursor and waits
// for room goes first. p.mu is held.
func (p *Pipeline) leftReadable() *leftBehind {
	for _, left := range p.log.left {
		if p.budget.memory <= p.options.MaxBytes/2 && p.fits(max(left.nextSize, p.log.nextSize)) && !p.stuckIn(left.namespace, 0.5) {
			return left
		}
	}
	return nil
}

// readLeft reads some of what was left behind of one namespace, in turn with the log from the cursor on, and reports whether there is
// more to read.
func (p *Pipeline) readLeft(ctx context.Context) (more bool) {
	l := &p.log
	p.mu.Lock()
	left := p.leftReadable()
	l.leftRead = left != nil && !(l.leftRead && p.readable())
	if !l.leftRead || ctx.Err() != nil {
		p.mu.Unlock()
		return left != nil
	}
	from, end := left.from, min(p.leftEnd(), l.written)
	p.mu.Unlock()

	var entries []delta.Entry
	var err error
	if from < end {
		entries, err = p.options.Log.Read(from, readChunk)
	}
	if err != nil {
		p.logger.Error("cannot read the log; what is in it waits", "err", err)
		p.pauseReading(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bringLeft(left, entries, end, err == nil)
	p.park()
	p.wakeCallers() // what it brought may have waited for a commit
	return err == nil && p.leftReadable() != nil
}

// bringLeft puts entries up to a number into the backlog, as far as there is room, and once the log has no more of them what is not
// written yet. p.mu is held.
func (p *Pipeline) bringLeft(left *leftBehind, entries []delta.Entry, end uint64, complete bool) {
	l := &p.log
	for _, e := range entries {
		if e.Seq >= end {
			break
		}
		if !p.loadLeft(left, p.logged(e)) {
			return
		}
	}
	if complete && (len(entries) == 0 || entries[len(entries)-1].Seq >= end) {
		left.from = max(left.from, end)
	}
	end = p.leftEnd()
	if left.from < min(end, l.written) {
		return
	}
	for _, i := range slices.Concat(l.captured, l.fresh) {
		if i.seq >= left.from && i.seq < end && !p.loadLeft(left, i) {
			return
		}
	}
	delete(l.left, left.namespace)
	l.rescan = true
	p.logger.Info("all changes of the namespace that were left in the log are read", "namespace", left.namespace)
}

// loadLeft puts the next item after those that were left behind into the backlog, if it is one, and reports whether there was room for
// it. p.mu is held.
func (p *Pipeline) loadLeft(left *leftBehind, i *item) bool {
	if !i.notice() && i.namespace() == left.namespace && !left.taken[i.seq] {
		if left.nextSize = i.size; !p.fits(i.size) {
			return false
		}
		p.restoreAhead(i)
		p.bring(i, &p.backlog.returned)
		left.count--
		left.nextSize, left.observed = 0, i.observed
	}
	left.from = i.seq + 1
	return true
}
