package pipeline

import (
	"context"
	"slices"
)

// maxBuffered bounds the bytes of deltas that wait for a commit to write them to the log, in a pipeline that spills.
const maxBuffered = 4 << 20

// memoryBudget accounts for the memory of a backlog. The pipeline's mutex guards it.
type memoryBudget struct {
	// memory is what the backlog holds, and what is reserved for it.
	memory int64
	// stuck is the part of it that the stubs of failing objects count.
	stuck int64
	// failing is the part of it that the items in Pipeline.unloadable take.
	failing int64
	// noRoomFor is the size of the last item of a snapshot for which there was no memory.
	// noRoomBehind is set if there was no room for it before the log, as its flow is stopped.
	noRoomFor    int64
	noRoomBehind bool
	// buffered is what waits for a commit.
	buffered int64
	// encoded is what the records of all batches take beside the items that they are made of. Over half of the backlog's
	// bound no further batch is begun.
	encoded int64
	// queue are the items that wait for memory, in order: one may need more than is usually released at once. Items of more than half of
	// the bound are not in it: they might wait for what is never released.
	queue []*item
	// freed is closed and replaced when memory was released and a caller waits for it. callers is how many wait.
	freed   chan struct{}
	callers int
	// full is set once a caller waits, not only for a commit, until half of the memory is free; each change is logged once.
	full bool
	// unpaced is set if the sink was too slow for a snapshot to wait for it.
	unpaced bool
}

// free returns how much memory is free for a flow, or for any one if it is nil. What another one needs that found no room is kept for that.
func (p *Pipeline) free(f *flow) int64 {
	free := p.options.MaxBytes - p.budget.memory
	if wanting := p.log.wanting; wanting != nil && wanting != f {
		free -= wanting.nextSize
	}
	return free
}

// hasRoom reports whether so much more of a flow may come into memory. A flow of which nothing is there may have all that is free, so that
// each one has something to send. While flows wait behind their cursors, half of the memory is for such flows, and for a little more of
// each. Otherwise a flow has at most twice of what it leaves free to others ("dynamic threshold"): however many fill the memory, some is left.
func (p *Pipeline) hasRoom(f *flow, size int64) bool {
	free := p.free(f)
	switch {
	case size > free:
		return false
	case f.memory == 0 || !p.options.Spill && !f.behind:
		return true
	case f.behind || p.log.flowsWait():
		return free-size >= p.options.MaxBytes/2 || f.memory+size <= min(turnBytes, free/4)
	default:
		return f.memory+size <= 2*(free-size)
	}
}

// occupy counts an item that comes into memory, and vacate one that leaves it.
func (p *Pipeline) occupy(f *flow, i *item) {
	i.flow = f
	f.memory += i.size
	p.budget.memory += i.size
}

func (p *Pipeline) vacate(i *item) {
	i.flow.memory -= i.size
	p.budget.memory -= i.size
}

// awaitFreed waits until memory may have been released, and returns false if ctx ends first. p.mu is held, but not
// during the wait.
func (p *Pipeline) awaitFreed(ctx context.Context) bool {
	freed := p.budget.freed
	p.budget.callers++
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-freed:
		return true
	case <-ctx.Done():
		return false
	}
}

// reserve reserves memory for an item: in the backlog, or before the log if the pipeline spills.
func (p *Pipeline) reserve(ctx context.Context, i *item) error {
	i.size = p.sizeOf(i.size)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.leaveQueue(i)
	for {
		stopped := p.stopped(i)
		queues := i.size <= p.options.MaxBytes/2 && !stopped
		if !queues {
			p.leaveQueue(i) // its flow was stopped while it waited
		}
		behindOthers := queues && len(p.budget.queue) > 0 && p.budget.queue[0] != i
		if !behindOthers && p.tryReserve(i) {
			break
		}
		if !p.budget.full && !p.awaitsCommit(i) {
			p.budget.full = true
			p.logger.Warn("the backlog is full; its sources wait until something is delivered", "waiting", p.counts.Waiting)
		}
		if queues && !slices.Contains(p.budget.queue, i) {
			p.budget.queue = append(p.budget.queue, i)
		}
		if !p.awaitFreed(ctx) {
			return context.Cause(ctx)
		}
	}
	if p.budget.full && p.budget.memory <= p.options.MaxBytes/2 {
		p.budget.full = false
		p.logger.Info("the backlog has room again")
	}
	return nil
}

// leaveQueue takes an item out of the queue, if it is in it, and wakes the callers behind it.
func (p *Pipeline) leaveQueue(i *item) {
	if n := slices.Index(p.budget.queue, i); n >= 0 {
		p.budget.queue = slices.Delete(p.budget.queue, n, n+1)
		p.announceFreed()
	}
}

// tryReserve reserves room for an item, if there is some: in memory, or else in the buffer before the log, if the pipeline spills or the
// flow is stopped.
func (p *Pipeline) tryReserve(i *item) bool {
	f := p.log.flow(i.Flow)
	defer p.log.dropIdle(f)
	switch behind := p.goesBehind(f); {
	case !behind && p.hasRoom(f, i.size):
		p.occupy(f, i)
	case (p.options.Spill || f.stopped) && p.fitsBuffer(i.size):
		i.buffered = true
		p.budget.buffered += i.size
	default:
		return false
	}
	return true
}

// stopped reports whether the flow of an item is stopped.
func (p *Pipeline) stopped(i *item) bool {
	f := p.log.flows[i.Flow]
	return f != nil && p.options.Log != nil && (f.stopped || p.stopIfStuck(f))
}

// awaitsCommit reports whether an item that finds no room finds some once a commit has written what is buffered. While commits fail,
// only what is delivered makes room.
func (p *Pipeline) awaitsCommit(i *item) bool {
	return !p.log.redo && (p.options.Spill || p.stopped(i)) && p.log.bytes+p.budget.buffered+i.size <= p.options.MaxDiskBytes
}

// fitsBuffer reports whether so much may wait for a commit, and be written to the log.
func (p *Pipeline) fitsBuffer(size int64) bool {
	buffered := p.budget.buffered + size
	return (p.budget.buffered == 0 || buffered <= maxBuffered) && p.log.bytes+buffered <= p.options.MaxDiskBytes
}

// sizeOf returns what an item of so many bytes counts: at most three quarters of the bound, so that a larger one is admitted while
// at most a quarter is in use. Records that the sink refuses may occupy that much for long.
func (p *Pipeline) sizeOf(size int64) int64 {
	return min(size, p.options.MaxBytes-p.options.MaxBytes/4)
}

// freeMemory returns an item's memory to the budget.
func (p *Pipeline) freeMemory(i *item) {
	if i.buffered {
		p.budget.buffered -= i.size
	} else {
		p.vacate(i)
		p.log.dropIdle(i.flow)
	}
	p.announceFreed()
}

// announceFreed wakes the callers that wait for memory, and the loader.
func (p *Pipeline) announceFreed() {
	p.wakeCallers()
	if l := &p.log; l.flowsWait() || len(l.stopped) > 0 {
		l.wakeLoader()
	}
}

// wakeCallers wakes the callers that wait for memory.
func (p *Pipeline) wakeCallers() {
	if p.budget.callers > 0 {
		close(p.budget.freed)
		p.budget.freed, p.budget.callers = make(chan struct{}), 0
	}
}
