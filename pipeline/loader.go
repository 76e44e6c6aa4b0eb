package pipeline

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// The loader moves what is behind the cursors into memory. It reads the flows in turn, as far as there is room for each (hasRoom).

const (
	// turnBytes is how much of a flow is read at least in its turn, if there is memory for it. If few flows wait, they have readBytes together.
	turnBytes = 64 << 10
	readBytes = 512 << 10
	// readPause is how long to wait after the log could not be read.
	readPause = time.Second
)

// load reads the log until ctx ends.
func (p *Pipeline) load(ctx context.Context) {
	for ctx.Err() == nil {
		more, err := p.readTurn()
		if err != nil {
			p.logger.Error("cannot read the log; its records wait", "err", err)
			p.pauseReading(ctx)
			continue
		}
		if more {
			continue
		}
		select {
		case <-p.log.wake:
		case <-ctx.Done():
		}
	}
}

// pauseReading waits before the log is read again.
func (p *Pipeline) pauseReading(ctx context.Context) {
	select {
	case <-time.After(readPause):
	case <-ctx.Done():
	}
}

// readTurn reads some of the flow whose turn it is, and reports whether there may be more to read.
func (p *Pipeline) readTurn() (more bool, err error) {
	p.mu.Lock()
	f := p.takeTurn()
	if f == nil {
		p.mu.Unlock()
		return false, nil
	}
	cursor, written := f.cursor, p.log.written
	most := max(turnBytes, readBytes/max(1, len(p.log.turns)))
	most = int(min(int64(most), max(p.free(f)/4, 1)))
	p.mu.Unlock()

	var entries []delta.Entry
	rest := false
	if cursor < written {
		entries, rest, err = p.options.Log.ReadFlow(f.name, cursor, most)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.returnTurn(f)
	full := false
	for _, e := range entries {
		if e.Seq >= p.log.written { // of a commit that has not called Committed, or never will
			rest = false // there is nothing more to read before one does
			break
		}
		if full = !p.loadNext(f, p.logged(e)); full {
			break
		}
	}
	if full || rest || err != nil {
		return true, err
	}
	f.cursor = max(f.cursor, written)
	if f.former {
		f.former = false
		p.log.former--
	}
	if f.cursor < p.log.written { // a commit has written some of the buffer meanwhile
		return true, nil
	}
	for len(f.unwritten) > 0 && p.loadNext(f, f.unwritten[0]) {
		f.dropUnwritten(f.cursor)
	}
	if len(f.unwritten) == 0 {
		p.log.catchUp(f)
	}
	return true, nil
}

// takeTurn takes the flow that is read next out of the turns; nil if there is none for which there is room.
func (p *Pipeline) takeTurn() *flow {
	l := &p.log
	for f := range l.stopped {
		p.resumeIfFree(f)
	}
	if p.budget.memory > 0 && p.options.MaxBytes-p.budget.memory <= p.options.MaxBytes/64 { // to go through many flows takes time
		return nil
	}
	for n := 0; n < len(l.turns); {
		f := l.turns[n]
		switch {
		case p.stopIfStuck(f): // it takes the flow out
		case p.mayLoad(f):
			l.turns = slices.Delete(l.turns, n, n+1)
			return f
		default:
			n++
		}
	}
	return nil
}

// returnTurn puts a flow at the end of the turns, if it is behind its cursor.
func (p *Pipeline) returnTurn(f *flow) {
	l := &p.log
	switch {
	case !f.behind:
		l.dropIdle(f)
		p.announceFreed() // others may wait for that, and what is new of it for memory
	case !f.stopped:
		l.turns = append(l.turns, f)
	}
	if len(l.turns) == 0 && len(l.stopped) == 0 {
		l.behind = 0
	}
}

// loadNext puts the next item of a flow into the backlog, and reports whether there was room for it.
func (p *Pipeline) loadNext(f *flow, i *item) bool {
	l := &p.log
	if f.nextSize = i.size; !p.mayLoad(f) {
		return false
	}
	if f.nextSize = 0; l.wanting == f {
		l.wanting = nil
	}
	if i.buffered {
		i.buffered = false
		p.budget.buffered -= i.size
	}
	p.occupy(f, i)
	f.cursor, f.lastRead = i.seq+1, i.observed
	l.behind--
	if i.restored {
		p.counts.restored(i)
	}
	p.enqueue(i)
	return true
}

// mayLoad reports whether there is room for the next item of a flow. If nothing of the flow is in memory, some is kept for it.
func (p *Pipeline) mayLoad(f *flow) bool {
	may := p.hasRoom(f, max(f.nextSize, 1))
	if !may && f.memory == 0 && p.log.wanting == nil {
		p.log.wanting = f
	}
	return may
}

// logged makes an item of an entry.
func (p *Pipeline) logged(e delta.Entry) *item {
	i := newItem(e)
	i.Flow = e.Flow // an entry that is damaged may lack its namespace
	i.seq, i.logged, i.Attempts, i.Failed = e.Seq, true, e.Attempts, e.Failed
	i.restored = e.Seq < p.options.Logged.Next
	if e.Unsendable != "" {
		i.err = errors.New(e.Unsendable)
	}
	i.size = p.sizeOf(i.size)
	return i
}
