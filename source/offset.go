package source

import (
	"strconv"
	"sync"
	"time"
)

// Offset is what is added to resource versions to make sequences: one number for the whole state, which only rises. It is raised where the
// sequences of an object could go back otherwise, as when the API server gives resource versions again.
type Offset struct {
	now func() time.Time

	mu      sync.Mutex // guards what follows
	current uint64
	// raised is what it becomes once that is committed, and captured what the commit in progress writes.
	raised, captured uint64
	counter          uint64
}

// NewOffset makes an offset that goes on from that of the last run. Without a last run, it is the time that now
// returns, a million for each second, because it is unknown what another state has sent under the same name.
func NewOffset(current uint64, now func() time.Time) *Offset {
	o := &Offset{now: now, current: current}
	if current == 0 {
		o.current = o.time()
	}
	o.raised = o.current
	return o
}

// NoOffset returns the offset of a program without a state directory. It is always 0.
func NoOffset() *Offset { return &Offset{} }

// time is the time as a sequence: a million for each second.
func (o *Offset) time() uint64 { return uint64(max(0, o.now().Unix())) << 20 }

// Current returns the offset.
func (o *Offset) Current() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.current
}

// raise is what the last run may have sent: sequences of the offset and the highest resource version that any of its watches has seen.
type raise struct {
	Offset uint64 `json:"offset"`
	Seen   uint64 `json:"seen,omitempty"`
}

// Capture returns what a commit writes. It is called as [Source.Capture] is.
func (o *Offset) Capture() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.captured = o.raised
	return o.captured
}

// Committed is called when what Capture returned last is on disk: no sequence is made of an offset before that.
func (o *Offset) Committed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.current = o.captured
}

// raise makes sequences begin behind one that may have been sent, once that is committed.
func (o *Offset) raise(sent uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now != nil {
		o.raised = max(o.raised, o.time(), sent+1)
	}
}

// next returns a sequence for what has no resource version that could be compared: it comes behind all others of this run, and by the time
// behind those of the runs before.
func (o *Offset) next() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counter == 0 {
		now := time.Now
		if o.now != nil {
			now = o.now
		}
		o.counter = uint64(max(0, now().Unix())) << 20
	}
	o.counter = max(o.counter, o.current) + 1
	return o.counter
}

// highestVersion is the highest resource version that sequences are made of. Higher ones are no versions of etcd, but a time in nanoseconds, say,
// that would use up all numbers.
const highestVersion = 1e16

// ordinary returns a resource version, or 0 for one that no sequences are made of.
func ordinary(version uint64) uint64 {
	if version > highestVersion {
		return 0
	}
	return version
}

// raiseOffset raises the offset beyond what the last run may have sent, if that is due, and beyond a resource version that the API server has
// now. It is called inside the handler's calls.
func (w *watcher) raiseOffset(now uint64) {
	if due := w.state.Raise; due != nil {
		w.options.Offset.raise(due.Offset + max(due.Seen, ordinary(now)))
		w.state.Raise = nil
	}
}

// sequence returns the sequence of a resource version, as a number: 0 if it is none.
func (w *watcher) sequence(version uint64) uint64 {
	if ordinary(version) == 0 {
		return w.options.Offset.next()
	}
	return w.options.Offset.Current() + version
}

// versionNumber is a resource version as a number, or 0 if it is none.
func versionNumber(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
