package pipeline

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// The log is the part of the backlog that is on disk. It is kept by flow: the deltas of one namespace are a flow, those of cluster-scoped
// objects are one, and gaps and marks are one.
//
// What is where:
//
//   - Every item has a number, in the order in which the pipeline took it. All flows share one sequence.
//   - Each flow has a cursor. What has a lower number is in memory, or settled, or waits for a failing object (unload.go). What has the
//     cursor's number or a higher one is behind the cursor: on disk only, or in the buffer until a commit has written it.
//   - While anything of a flow is behind its cursor, all that is new of it goes there, too. So the order of each object is that of the numbers.
//   - Nothing is kept in memory of what is on disk behind a cursor, but for the flow itself.
//
// Who may do what:
//
//   - Pipeline.mu guards all of it. The loader (loader.go) reads the disk without it.
//   - Take puts a flow behind its cursor (place). Only the loader moves the cursor of a flow that is behind it, and ends that.
//   - Commits write everything that is not settled: Capture, then Committed or Failed.
//
// Nothing here knows why an item is not delivered.

// Log is a pipeline's part of the checkpoint. A commit writes what Capture returns; this reads it back.
type Log interface {
	// ReadFlow returns the entries of a flow from a number on, in order: at least one if there is one, then up to maxBytes. more is set if
	// there are others behind them.
	ReadFlow(flow string, from uint64, maxBytes int) (entries []delta.Entry, more bool, err error)
	// Commit requests a commit soon, and does not wait for it.
	Commit()
}

// logState is the state of the log. The pipeline's mutex guards it.
type logState struct {
	next uint64 // number of the next item
	// written is the number up to which commits have written.
	written uint64
	bytes   int64 // on disk
	// flows are those of which something is in memory, waits for a failing object, or is behind the cursor.
	flows map[string]*flow
	// turns are the flows that are behind their cursors and not stopped: the loader reads them in turn.
	turns []*flow
	// stopped are the flows with too many failing objects.
	stopped map[*flow]struct{}
	// wanting is the flow whose next item found no room. Memory is kept for it, so that small items of others do not keep it out.
	wanting *flow
	// behind counts the items behind cursors.
	behind uint64
	// former counts the flows of which the loader has not read all that the last run left.
	former int
	// fresh are the items that no commit has captured, captured those that one is writing.
	fresh, captured []*item
	sweep           int // length of fresh at which the settled are dropped from it
	// redo is set if commits failed: the next one removes what they may have left in the log, from written on.
	redo bool
	// removable are settled, and still in the log; removing are those that the commit under way removes.
	removable, removing []delta.LogKey
	// attempted are the items that failed by themselves since the last commit, attempting those of which the commit under way writes the attempts.
	attempted, attempting map[*item]struct{}
	wake                  chan struct{}
}

// flow is what waits of one namespace, of all cluster-scoped objects, or of all gaps and marks.
type flow struct {
	name string
	// memory is the size of its items in memory, and of what is reserved for it.
	memory int64
	// stuck is what the stubs of its items count of the bound (unload.go).
	stuck int64

	// behind is set while something is behind the cursor.
	behind bool
	cursor uint64
	// unwritten are the items behind the cursor that no commit has written, in order.
	unwritten []*item
	// nextSize is the size of the item at the cursor, if it is known and there was no memory for it.
	nextSize int64
	// lastRead is when the last item before the cursor was observed, or one behind it.
	lastRead time.Time
	// former is set while something that the last run left is behind the cursor.
	former  bool
	stopped bool
}

// namespaceFlow returns the flow of a namespace. No API server takes a name that is not one for the log; whoever serves objects may.
func namespaceFlow(namespace string) string {
	if strings.IndexByte(namespace, 0) >= 0 || strings.HasPrefix(namespace, "\xFF") {
		return strconv.Quote(namespace)
	}
	return namespace
}

// flow returns a flow, and makes it if there is none.
func (l *logState) flow(name string) *flow {
	f := l.flows[name]
	if f == nil {
		f = &flow{name: strings.Clone(name)}
		l.flows[f.name] = f
	}
	return f
}

// dropIdle forgets a flow of which nothing waits.
func (l *logState) dropIdle(f *flow) {
	if !f.behind && f.memory == 0 && f.stuck == 0 {
		delete(l.flows, f.name)
		delete(l.stopped, f)
	}
}

// goBehind puts a flow behind its cursor.
func (l *logState) goBehind(f *flow, cursor uint64, lastRead time.Time) {
	f.behind, f.cursor, f.lastRead = true, cursor, lastRead
	if !f.stopped {
		l.turns = append(l.turns, f)
	}
}

// catchUp ends that a flow is behind its cursor. It is in no turn.
func (l *logState) catchUp(f *flow) {
	f.behind, f.nextSize, f.unwritten = false, 0, nil
	if l.wanting == f {
		l.wanting = nil
	}
}

// flowsWait reports whether a flow waits for memory.
func (l *logState) flowsWait() bool { return len(l.turns) > 0 }

func (l *logState) wakeLoader() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// restore begins with what the log holds, all of it behind the cursors.
func (p *Pipeline) restore(logged delta.LogSize, flows []string) {
	p.log = logState{
		next: logged.Next, written: logged.Next, behind: logged.Entries, bytes: logged.Bytes,
		flows: map[string]*flow{}, stopped: map[*flow]struct{}{}, attempted: map[*item]struct{}{}, wake: make(chan struct{}, 1),
	}
	for _, name := range flows {
		f := p.log.flow(name)
		f.former = true
		p.log.former++
		p.log.goBehind(f, 0, p.now())
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
	for i := range l.attempted {
		if i.logged { // else the entry itself has them
			change.Attempts = append(change.Attempts, delta.Attempts{Seq: i.seq, Attempts: i.Attempts, Failed: i.Failed})
		}
	}
	l.attempting, l.attempted = l.attempted, map[*item]struct{}{}
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
			LogKey: i.key(), Unsendable: unsendable, Delta: i.delta, Gap: i.gap, Mark: i.mark, Attempts: i.Attempts, Failed: i.Failed,
		})
	}
	clear(l.fresh)
	l.fresh = l.fresh[:0]
	return change
}

// key is where the item is in the log.
func (i *item) key() delta.LogKey { return delta.LogKey{Flow: i.Flow, Seq: i.seq} }

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
			l.flows[i.Flow].dropUnwritten(i.seq + 1)
		}
	}
	clear(l.captured)
	l.captured = l.captured[:0]
	l.removing, l.attempting, l.redo = nil, nil, false
	p.unloadAll()
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
	l.removable = slices.DeleteFunc(l.removable, func(key delta.LogKey) bool { return key.Seq >= l.written })
	l.removable = append(l.removing, l.removable...)
	l.removing = nil
	maps.Copy(l.attempted, l.attempting)
	l.attempting = nil
	l.fresh = slices.Concat(l.captured, l.fresh)
	l.captured = nil
	p.wakeCallers()
}

// dropUnwritten forgets the items of the buffer with lower numbers.
func (f *flow) dropUnwritten(before uint64) {
	n := 0
	for n < len(f.unwritten) && f.unwritten[n].seq < before {
		f.unwritten[n] = nil
		n++
	}
	if f.unwritten = f.unwritten[n:]; len(f.unwritten) == 0 {
		f.unwritten = nil
	}
}

// forget takes note of a settled item: the next commit removes its entry, and need not write its attempts.
func (p *Pipeline) forget(i *item) {
	delete(p.log.attempted, i)
	delete(p.log.attempting, i)
	if i.logged {
		p.log.removable = append(p.log.removable, i.key())
	}
}

// place puts a taken item where it belongs: into memory, or behind the cursor of its flow.
func (p *Pipeline) place(i *item) {
	l := &p.log
	i.seq = l.next
	l.next++
	if p.options.Log != nil {
		if len(l.fresh) >= l.sweep { // what was settled meanwhile need not be kept for the commit
			l.fresh = slices.DeleteFunc(l.fresh, func(i *item) bool { return i.settled })
			l.sweep = max(1024, 2*len(l.fresh))
		}
		l.fresh = append(l.fresh, i)
	}
	f := l.flow(i.Flow)
	if p.goesBehind(f) && !i.buffered { // what is before it went to the log since the room was reserved
		p.vacate(i)
		p.budget.buffered += i.size
		i.buffered = true
	}
	if !i.buffered {
		i.flow = f
		p.enqueue(i)
		return
	}
	if !f.behind {
		l.goBehind(f, i.seq, i.observed)
	}
	l.behind++
	f.unwritten = append(f.unwritten, i)
	l.wakeLoader()
	if p.budget.buffered > maxBuffered/2 {
		p.options.Log.Commit()
	}
}

// goesBehind reports whether what is new of a flow goes behind the cursor, whatever room there is.
func (p *Pipeline) goesBehind(f *flow) bool {
	return p.options.Log != nil && (f.behind || f.stopped || p.stopIfStuck(f))
}
