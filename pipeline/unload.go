package pipeline

import (
	"slices"
	"strings"
)

// An object whose record fails waits, and its later records wait behind it. Once a commit has written them, their deltas leave memory, and a stub of
// each is kept. They are read again when they are sent. So what fails takes no room that others need, and one object that changes often does not
// either.
//
// The stubs count towards the bound of the backlog. They may take a quarter of it: a flow with too many of them, or with too many objects that
// fail, is stopped. Its later changes wait behind its cursor, and nothing of other flows waits for it.

const (
	// stubSize is what an item counts towards the bound while its delta is on disk only; at most what it counted before.
	stubSize = 400
	// maxFailing is how many objects of a flow may fail before it is stopped.
	maxFailing = 1000
	// stuckShare is the part of the memory that stubs may take, and stuckParts what one flow may have of what is left of that: alone,
	// one twentieth of the memory.
	stuckShare = 1.0 / 4
	stuckParts = 4
)

// stopIfStuck stops a flow if too much of it is stuck, and reports whether it is stopped.
func (p *Pipeline) stopIfStuck(f *flow) bool {
	l := &p.log
	if f.stopped || p.scheduler.Failing(f.name) == 0 || !p.tooStuck(f, 1) {
		return f.stopped
	}
	f.stopped = true
	l.stopped[f] = struct{}{}
	if n := slices.Index(l.turns, f); n >= 0 {
		l.turns = slices.Delete(l.turns, n, n+1)
	}
	if l.wanting == f {
		l.wanting = nil
	}
	p.logger.Warn("too many objects of the namespace fail; its further changes wait in the log", "namespace", f.name, "failing", p.scheduler.Failing(f.name))
	return true
}

// resumeIfFree ends that a flow is stopped once half as much of it is stuck: else it would be stopped again at once.
func (p *Pipeline) resumeIfFree(f *flow) {
	if p.tooStuck(f, 2) {
		return
	}
	f.stopped = false
	delete(p.log.stopped, f)
	if f.behind {
		p.log.turns = append(p.log.turns, f)
	}
	p.logger.Info("the log of the namespace is read again", "namespace", f.name, "failing", p.scheduler.Failing(f.name))
	p.log.dropIdle(f)
}

// tooStuck reports whether too much of a flow is stuck, or would be if it were so many times as much.
func (p *Pipeline) tooStuck(f *flow, times int64) bool {
	left := int64(stuckShare*float64(p.options.MaxBytes)) - p.budget.stuck
	return p.scheduler.Failing(f.name) > 0 &&
		(int64(p.scheduler.Failing(f.name))*times >= maxFailing || f.stuck*times*stuckParts > max(left, 0))
}

// noteFailing notes that an item waits for an object that fails: it leaves memory once a commit has written it to the log, if there is one.
func (p *Pipeline) noteFailing(i *item) {
	if _, noted := p.unloadable[i]; !noted && !i.stub && !i.notice() && !p.unload(i) {
		p.unloadable[i] = struct{}{}
		p.budget.failing += i.size
	}
}

// noteWell ends that: the item was settled or unloaded, or its object does not fail any more.
func (p *Pipeline) noteWell(i *item) {
	if _, noted := p.unloadable[i]; noted {
		delete(p.unloadable, i)
		p.budget.failing -= i.size
	}
}

// unloadAll unloads what a commit has written of objects that still fail.
func (p *Pipeline) unloadAll() {
	for i := range p.unloadable {
		if !p.scheduler.Fails(i.Ref) || p.unload(i) {
			p.noteWell(i)
		}
	}
}

// unload removes the delta of an item from memory if it is in the log, and reports whether it did.
func (p *Pipeline) unload(i *item) bool {
	if i.inBatch || !i.logged || i.seq >= p.log.written {
		return false
	}
	p.noteWell(i)
	if i.summary == nil { // else the delta was unloaded before, and may not have been read since
		i.summary = &summary{i.delta.Type, strings.Clone(i.delta.Object.ResourceVersion())}
	}
	i.stub, i.delta = true, nil
	p.vacate(i)
	p.keep(i.flow, min(i.size, stubSize))
	p.announceFreed()
	return true
}

// unstub counts a stub as what it takes once its delta is read.
func (p *Pipeline) unstub(i *item) {
	i.stub = false
	p.keep(i.flow, -min(i.size, stubSize))
	p.occupy(i.flow, i)
}

// keep counts what is kept in place of records that left memory.
func (p *Pipeline) keep(f *flow, size int64) {
	f.stuck += size
	p.budget.stuck += size
	p.budget.memory += size
}
