package pipeline

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Log is a pipeline's part of the checkpoint. A commit writes what Capture returns; this reads it back.
type Log interface {
	// Read returns the entries from a number on, in order: at least one if there is one, then up to maxBytes.
	Read(from uint64, maxBytes int) ([]delta.Entry, error)
	// Commit requests a commit soon, and does not wait for it.
	Commit()
}

// logState is the state of the log. The pipeline's mutex guards it.
//
// Every item has a number, in the order in which the pipeline took it. Up to a point, the cursor, what is not settled
// is in memory, and a commit writes it as well; from the cursor on it is in the log only, or in the buffer for the
// next commit. While anything is behind the cursor, all that is new goes there too: so the order of each object is
// that of the numbers, and no more than a counter is kept of what is on disk. When all of the log is read, the cursor
// goes through the buffer: else a pipeline that has caught up under a steady load would never leave the disk.
type logState struct {
	next   uint64 // number of the next item
	cursor uint64
	// behind counts the items from the cursor on.
	behind uint64
	// written is the number up to which commits have written.
	written uint64
	bytes   int64
	// fresh are the items that no commit has captured, captured those that one is writing.
	fresh, captured []*item
	// redo is set if commits failed: the next one removes what they may have left in the log, from written on.
	redo bool
	// unwritten are the items of the buffer, in order: those behind the cursor that no commit has written.
	unwritten []*item
	sweep     int      // length of fresh at which the settled are dropped from it
	removable []uint64 // settled, and still in the log
	removing  []uint64 // those that the commit under way removes
	lastRead  time.Time
	// nextSize is the size of the item at the cursor, if it was read and there was no memory for it.
	nextSize int64
	// returning are objects whose next delta is parked, and is to be read.
	returning returnQueue
	// back counts the objects of which records were read back that were not tried yet, and returned those that fail.
	back     int
	returned sinks.PerNamespace
	// candidate is what the next probe from beyond the cursor sends; nil if there is none.
	candidate *item
	// taken are the numbers of the entries beyond the cursor that such probes took: false while one is under way, and true
	// once it is settled, until it is not in the log any more. gone are those of which the reader has not taken note yet.
	taken map[uint64]bool
	gone  []uint64
	// left are the namespaces that were left behind; leftRead is set if some of that was read last.
	left     map[string]*leftBehind
	leftRead bool
	// failedAhead are the candidates that failed, by their numbers, failedOf is when one of a namespace did, if none got through since, and
	// aheadCalls are those under way.
	failedAhead map[uint64]failedAhead
	failedOf    map[string]time.Time
	sweepAhead  time.Time // when those that have waited may be forgotten
	aheadCalls  sinks.PerNamespace
	// rescan is set if what is beyond the cursor is to be scanned again for candidates. settledNotices are the watches of notices that were
	// settled: what follows in the log was passed if the notice was there too.
	rescan         bool
	settledNotices []string
	wake           chan struct{}
}

func (l *logState) wakeReader() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// restore begins with what the log holds, all of it behind the cursor.
func (p *Pipeline) restore(logged delta.LogSize) {
	p.log = logState{
		next: logged.Next, written: logged.Next, behind: logged.Entries, bytes: logged.Bytes,
		wake: make(chan struct{}, 1), lastRead: p.now(), taken: map[uint64]bool{}, left: map[string]*leftBehind{},
		failedAhead: map[uint64]failedAhead{}, failedOf: map[string]time.Time{},
	}
	p.counts.Restored, p.counts.Waiting = logged.Entries, logged.Entries // gaps among them are counted when they are read
}

// Capture returns what happened to the log since the last call, for a commit to write. It is called while no delta is
// being handed over. Exactly one call of Committed or Failed follows before the next Capture.
func (p *Pipeline) Capture() delta.LogChange {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &p.log
	change := delta.LogChange{Pipeline: p.options.Name, Remove: l.removable, Redo: l.redo, From: l.written}
	l.removing, l.removable = l.removable, nil
	for _, i := range l.fresh {
		if i.settled { // the common case: nothing is written for it
			continue
		}
		i.logged = true
		l.captured = append(l.captured, i)
		unsendable := ""
		if i.err != nil {
			unsendable = i.err.Error()
		}
		change.Append = append(change.Append, delta.Entry{
			Unsendable: unsendable,
			Seq:        i.seq, Delta: i.delta, Gap: i.gap, Mark: i.mark, Attempts: i.attempts, Failed: i.failed,
		})
	}
	clear(l.fresh)
	l.fresh = l.fresh[:0]
	return change
}

// Committed is called when what Capture returned last is on disk; the log takes so many bytes then.
func (p *Pipeline) Committed(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &p.log
	l.bytes = bytes
	for _, i := range l.captured {
		l.written = max(l.written, i.seq+1)
		if i.buffered {
			p.budget.buffered -= i.size
		}
	}
	clear(l.captured)
	l.captured = l.captured[:0]
	for _, seq := range l.removing {
		if l.taken[seq] {
			l.gone = append(l.gone, seq)
		}
	}
	l.removing, l.redo = nil, false
	l.dropUnwritten(l.written)
	p.park()
	p.announceFreed()
}

// Failed is called when it is not certain that what Capture returned last is on disk: the next Capture returns what is not settled
// of it by then, and has the rest removed.
func (p *Pipeline) Failed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &p.log
	l.redo = l.redo || len(l.captured) > 0
	for _, i := range l.captured {
		i.logged = false
	}
	// What was settled since it was captured is removed with all that the commit may have left, and not by its number:
	// numbers would pile up for as long as the disk is full.
	l.removable = slices.DeleteFunc(l.removable, func(seq uint64) bool { return seq >= l.written })
	l.removable = append(l.removing, l.removable...)
	l.removing = nil
	l.fresh = slices.Concat(l.captured, l.fresh)
	l.captured = nil
	p.wakeCallers()
}

// dropUnwritten forgets the items of the buffer with lower numbers.
func (l *logState) dropUnwritten(before uint64) {
	n := 0
	for n < len(l.unwritten) && l.unwritten[n].seq < before {
		l.unwritten[n] = nil
		n++
	}
	l.unwritten = l.unwritten[n:]
	if len(l.unwritten) == 0 {
		l.unwritten = nil
	}
}

const (
	// readChunk is how much of the log is read at once.
	readChunk = 512 << 10
	// readPause is how long to wait after the log could not be read.
	readPause = time.Second
)

// readBack moves items from the log into memory as there is room, until ctx ends.
func (p *Pipeline) readBack(ctx context.Context) {
	for {
		more := p.readParked(ctx)
		more = p.readLeft(ctx) || more
		p.mu.Lock()
		p.forgetGone()
		cursor, written, ready := p.log.cursor, p.log.written, p.readable()
		p.mu.Unlock()
		var entries []delta.Entry
		var err error
		if ready {
			entries, err = p.options.Log.Read(cursor, readChunk)
		} else {
			err = p.lookAhead(ctx)
		}
		if err != nil {
			p.logger.Error("cannot read the log; what is in it waits", "err", err)
			p.pauseReading(ctx)
		}
		p.mu.Lock()
		if ready && (p.log.behind == 0 || p.log.cursor != cursor) { // what was left was sent during the read, and new changes may have come
			entries, ready = nil, false
			p.log.wakeReader()
		}
		if ready && err == nil && (len(entries) == 0 || entries[0].Seq >= written) { // probes took what was left
			p.log.cursor = max(p.log.cursor, written)
		}
		p.admit(entries)
		p.admitUnwritten()
		ready = ready && len(entries) > 0 && p.readable()
		p.mu.Unlock()
		if (ready || more) && ctx.Err() == nil {
			continue
		}
		select {
		case <-p.log.wake:
		case <-ctx.Done():
			return
		}
	}
}

// pauseReading waits before the log is read again.
func (p *Pipeline) pauseReading(ctx context.Context) {
	select {
	case <-time.After(readPause):
		p.log.wakeReader() // perhaps nothing else does
	case <-ctx.Done():
	}
}

// readable reports whether something is on disk, and half of the memory is free for it. What did not fit when it was read waits
// until it does: else it would be read over and over.
func (p *Pipeline) readable() bool {
	settled, taken := p.log.taken[p.log.cursor]
	return p.log.behind > 0 && p.log.cursor < p.log.written && p.budget.memory <= p.options.MaxBytes/2 && p.fits(p.log.nextSize) &&
		(settled || !taken)
}

// admit puts entries of the log into the backlog, as far as there is room.
func (p *Pipeline) admit(entries []delta.Entry) {
	for _, e := range entries {
		if e.Seq >= p.log.written { // of a commit that has not called Committed, or never will
			break
		}
		settled, taken := p.log.taken[e.Seq]
		if settled {
			p.log.cursor, p.log.nextSize = e.Seq+1, 0
			continue
		}
		if taken { // settleAhead wakes the reader
			p.log.cursor = e.Seq
			break
		}
		i := p.logged(e)
		if !p.load(i) {
			break
		}
		if e.Seq < p.options.Logged.Next {
			p.counts.restored(i)
		}
	}
	p.park()
	if p.log.behind == 0 {
		p.wakeCallers()
	}
}

// load puts the item at the cursor into the backlog, or leaves it behind, and reports whether there was room for it.
func (p *Pipeline) load(i *item) bool {
	switch {
	case p.leaves(i):
		p.leave(i)
	case p.fits(i.size):
		p.restoreAhead(i)
		p.bring(i, &p.backlog.arrivals)
	default:
		p.log.cursor, p.log.nextSize = i.seq, i.size
		return false
	}
	p.log.nextSize = 0
	p.log.cursor, p.log.lastRead = i.seq+1, i.observed
	p.log.behind--
	return true
}

// bring puts an item of the log or of the buffer into the backlog, and into one of its lists.
func (p *Pipeline) bring(i *item, to *list.List) {
	if i.buffered {
		i.buffered = false
		p.budget.buffered -= i.size
	}
	p.budget.memory += i.size
	p.backlog.add(i, to)
}

// logged makes an item of an entry.
func (p *Pipeline) logged(e delta.Entry) *item {
	i := newItem(e)
	i.seq, i.logged, i.attempts, i.failed = e.Seq, true, e.Attempts, e.Failed
	i.restored = e.Seq < p.options.Logged.Next
	if e.Unsendable != "" {
		i.err = errors.New(e.Unsendable)
	}
	i.size = p.sizeOf(i.size)
	return i
}

// admitUnwritten moves items of the buffer into the backlog, as far as there is room, once the log has been read up to
// them.
func (p *Pipeline) admitUnwritten() {
	l := &p.log
	if l.cursor < l.written {
		return
	}
	for _, i := range l.unwritten {
		if !p.load(i) {
			break
		}
	}
	if before := len(l.unwritten); before > 0 {
		l.dropUnwritten(l.cursor)
		if len(l.unwritten) < before {
			p.announceFreed()
		}
	}
}

// forget takes note of a settled item whose entry the next commit removes.
func (p *Pipeline) forget(i *item) {
	if i.logged {
		p.log.removable = append(p.log.removable, i.seq)
	}
}
