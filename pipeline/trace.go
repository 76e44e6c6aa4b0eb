package pipeline

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Waiting is what of one object waits in a pipeline, and behind what.
type Waiting struct {
	// Total counts the records, and Records are the first of them, in order.
	Total   int             `json:"total"`
	Records []WaitingRecord `json:"records"`
	Behind  string          `json:"behind,omitempty"`
	// Unsearched counts what waits on disk and was not searched for the object when the time was up.
	Unsearched uint64 `json:"unsearched,omitempty"`
	onDisk     string // what it is behind if it is on disk only
	// head is of the first record, if that has left memory: no commit may have written its last attempts.
	head delta.Attempts
}

// WaitingRecord is a record that waits.
type WaitingRecord struct {
	Type            delta.Type `json:"type"`
	ResourceVersion string     `json:"resourceVersion"`
	// Observed is when the change was handed on.
	Observed time.Time `json:"observed"`
	// Attempts have failed, since FirstFailure.
	Attempts     int       `json:"attempts"`
	FirstFailure time.Time `json:"firstFailure,omitzero"`
	OnDisk       bool      `json:"onDisk"`
	seq          uint64
}

// maxWaitingRecords bounds Waiting.Records.
const maxWaitingRecords = 20

// Waiting finds what waits of an object. What is on disk is searched until ctx ends.
func (p *Pipeline) Waiting(ctx context.Context, ref delta.Ref) (w Waiting, err error) {
	flow := namespaceFlow(ref.Namespace)
	cursor, written, behind := p.waitingInMemory(&w, ref)
	inMemory := slices.Clone(w.Records)
	for searched := uint64(0); cursor < written; {
		entries, _, err := p.options.Log.ReadFlow(flow, cursor, readBytes)
		if err != nil {
			return w, err
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			searched++
			cursor = e.Seq + 1
			known := slices.ContainsFunc(inMemory, func(r WaitingRecord) bool { return r.seq == e.Seq })
			if e.Seq < written && e.Delta != nil && e.Delta.Ref() == ref && !known {
				i := newItem(e)
				i.seq, i.attempts, i.failed = e.Seq, e.Attempts, e.Failed
				if w.head.Attempts > 0 && w.head.Seq == e.Seq {
					i.attempts, i.failed = w.head.Attempts, w.head.Failed
				}
				if len(w.Records) < len(inMemory)+maxWaitingRecords {
					w.add(i, true)
				} else {
					w.Total++
				}
			}
		}
		if ctx.Err() != nil {
			w.Unsearched = max(behind, searched) - searched
			break
		}
	}
	slices.SortFunc(w.Records, func(a, b WaitingRecord) int { return cmp.Compare(a.seq, b.seq) })
	w.Records = w.Records[:min(len(w.Records), maxWaitingRecords)]
	if w.Total > 0 && w.Behind == "" {
		w.Behind = w.onDisk
	}
	return w, nil
}

func (w *Waiting) add(i *item, onDisk bool) {
	w.Total++
	w.Records = append(w.Records, WaitingRecord{i.delta.Type, i.delta.Object.ResourceVersion(), i.observed, i.attempts, i.failed, onDisk, i.seq})
}

// waitingInMemory adds what is in memory, and returns from and up to where the log has more, and how much that is.
func (p *Pipeline) waitingInMemory(w *Waiting, ref delta.Ref) (cursor, written, behind uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range []*list.List{&p.backlog.loaded, &p.backlog.arrivals} {
		for e := list.Front(); e != nil; e = e.Next() {
			if i := e.Value.(*item); i.delta != nil && i.ref == ref {
				w.add(i, false)
			}
		}
	}
	for _, i := range slices.Concat(p.log.captured, p.log.fresh) {
		if i.delta != nil && i.ref == ref && i.buffered {
			w.add(i, false)
		}
	}
	o := p.backlog.objects[ref]
	f := p.log.flows[namespaceFlow(ref.Namespace)]
	cursor, written, behind = p.log.written, p.log.written, p.log.behind
	stopped := f != nil && f.stopped
	if f != nil && f.behind { // else what is in the log is in memory too, or settled
		cursor = f.cursor
		w.onDisk = fmt.Sprintf("what waits on disk: %d changes", behind)
	}
	if stopped {
		w.onDisk = fmt.Sprintf("other objects of its namespace: %d fail, and its further changes wait on disk", f.failing)
	}
	if o != nil && len(o.unloaded) > 0 {
		cursor = min(cursor, o.unloaded[0].seq)
		w.head = delta.Attempts{Seq: cursor, Attempts: o.attempts, Failed: o.failed}
	}
	w.Behind = p.waitsBehind(o, len(w.Records) > 0 && !stopped)
	return cursor, written, behind
}

// waitsBehind returns what the first record of an object waits for; empty if it is on disk only.
func (p *Pipeline) waitsBehind(o *objectQueue, inMemory bool) string {
	sink := ""
	if p.breaker.tripped {
		sink = fmt.Sprintf("the sink, which fails since %s: %s", FormatTime(p.breaker.since), p.lastErr)
	}
	if o == nil && inMemory {
		return strings.TrimSuffix("a gap record, or a mark of a snapshot, of its watch, which waits for "+sink, " which waits for ")
	}
	if o == nil {
		return sink
	}
	attempts, failed := o.attempts, o.failed
	if len(o.items) > 0 {
		head := o.items[0]
		if attempts, failed = head.attempts, head.failed; head.final != nil {
			return "its own first record, which can never be delivered, and whose dead letter cannot be written: " + head.final.Error()
		}
	}
	switch {
	case sink != "":
		return sink
	case attempts > 0:
		return fmt.Sprintf("its own first record, which failed %d times since %s and is tried again; the last error of the pipeline: %s", attempts, FormatTime(failed), p.lastErr)
	case o.inFlight:
		return "the answer of the sink: it is being sent"
	}
	return "its turn"
}

// Undelivered returns how many records of the snapshots of a watch are not settled, and what these wait for: the sink, if it fails, or
// the object with one of them that has failed for longest; empty if none has.
func (p *Pipeline) Undelivered(watch string) (records int, waitsFor string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if records = p.counts.snapshots[watch].waiting; records == 0 || p.breaker.tripped {
		return records, p.waitsBehind(nil, false)
	}
	var first *objectQueue
	for o := range p.backlog.failing {
		if o.holdsSnapshot(watch) && (first == nil || o.failedSince().Before(first.failedSince())) {
			first = o
		}
	}
	if first == nil {
		return records, ""
	}
	return records, first.ref.Path() + ", which waits for " + p.waitsBehind(first, true)
}

// holdsSnapshot reports whether a record of a snapshot of a watch waits in an object, or behind it since its flow is stopped.
func (o *objectQueue) holdsSnapshot(watch string) bool {
	for _, items := range [][]*item{o.items, o.tail} {
		for _, i := range items {
			if i.watch == watch && (i.ofSnapshot() || o.flow.stopped) {
				return true
			}
		}
	}
	return slices.ContainsFunc(o.unloaded, func(u unloaded) bool { return u.watch == watch && (u.snapshot || o.flow.stopped) })
}

// failedSince is when the first record of an object first failed.
func (o *objectQueue) failedSince() time.Time {
	if len(o.items) > 0 {
		return o.items[0].failed
	}
	return o.failed
}

// FormatTime returns a time as RFC 3339, in UTC.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
