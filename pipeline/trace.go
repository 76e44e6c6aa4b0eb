package pipeline

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	sched "github.com/kubeferry/kubeferry/pipeline/flow"
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
	stubs      []stubAttempts
}

// stubAttempts are those of a record of which the delta has left memory.
type stubAttempts struct {
	seq    uint64
	count  int
	failed time.Time
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
				i.seq, i.Attempts, i.Failed = e.Seq, e.Attempts, e.Failed
				if n := slices.IndexFunc(w.stubs, func(stub stubAttempts) bool { return stub.seq == e.Seq }); n >= 0 {
					i.Attempts, i.Failed = w.stubs[n].count, w.stubs[n].failed // no commit may have written the last ones
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
	w.Records = append(w.Records, WaitingRecord{i.delta.Type, i.delta.Object.ResourceVersion(), i.observed, i.Attempts, i.Failed, onDisk, i.seq})
}

// waitingInMemory adds what is in memory, and returns from and up to where the log has more, and how much that is.
func (p *Pipeline) waitingInMemory(w *Waiting, ref delta.Ref) (cursor, written, behind uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range []*list.List{&p.backlog.loaded, &p.backlog.arrivals} {
		for e := list.Front(); e != nil; e = e.Next() {
			if i := e.Value.(*item); i.delta != nil && i.Ref == ref {
				w.add(i, false)
			}
		}
	}
	for _, i := range slices.Concat(p.log.captured, p.log.fresh) {
		if i.delta != nil && i.Ref == ref && i.buffered {
			w.add(i, false)
		}
	}
	items, sent := p.scheduler.Waiting(ref)
	f := p.log.flows[namespaceFlow(ref.Namespace)]
	cursor, written, behind = p.log.written, p.log.written, p.log.behind
	stopped := f != nil && f.stopped
	if f != nil && f.behind { // else what is in the log is in memory too, or settled
		cursor = f.cursor
		w.onDisk = fmt.Sprintf("what waits on disk: %d changes", behind)
	}
	if stopped {
		w.onDisk = fmt.Sprintf("other objects of its namespace: %d fail, and its further changes wait on disk", p.scheduler.Failing(f.name))
	}
	for _, i := range items {
		if i := itemOf(i); i.delta == nil && !i.notice() { // the search on disk finds it
			cursor = min(cursor, i.seq)
			w.stubs = append(w.stubs, stubAttempts{i.seq, i.Attempts, i.Failed})
		}
	}
	w.Behind = p.waitsBehind(first(items), sent)
	return cursor, written, behind
}

// first returns the first of some items; nil if there is none.
func first(items []*sched.Item) *item {
	if len(items) == 0 {
		return nil
	}
	return itemOf(items[0])
}

// waitsBehind returns what the first record of an object waits for; empty if it is on disk only. sent is set if a batch holds it.
func (p *Pipeline) waitsBehind(head *item, sent bool) string {
	sink := ""
	if !p.awaySince.IsZero() {
		sink = fmt.Sprintf("the sink, which is away since %s: %s", FormatTime(p.awaySince), p.lastErr)
	}
	switch {
	case head == nil:
		return sink
	case head.final != nil:
		return "its own first record, which can never be delivered, and whose dead letter cannot be written: " + head.final.Error()
	case sink != "":
		return sink
	case head.Attempts > 0:
		return fmt.Sprintf("its own first record, which failed %d times since %s and is tried again; the last error of the pipeline: %s",
			head.Attempts, FormatTime(head.Failed), p.lastErr)
	case sent:
		return "the answer of the sink: it is being sent"
	default:
		return "its turn"
	}
}

// Undelivered returns how many records of the snapshots of a watch are not settled, and what these wait for: the sink, if it is away, or
// the object of the watch that has failed for longest; empty if none has.
func (p *Pipeline) Undelivered(watch string) (records int, waitsFor string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.counts.watch(watch)
	records = w.snapshots
	if records+w.before+w.after == 0 || !p.awaySince.IsZero() {
		return records, p.waitsBehind(nil, false)
	}
	var longest *item
	for _, list := range []*list.List{&p.backlog.loaded, &p.backlog.arrivals} {
		for e := list.Front(); e != nil; e = e.Next() {
			i := e.Value.(*item)
			if i.watch != watch {
				continue
			}
			items, _ := p.scheduler.Waiting(i.Ref)
			if head := first(items); head != nil && head.Attempts > 0 && (longest == nil || head.Failed.Before(longest.Failed)) {
				longest = head
			}
		}
	}
	if longest == nil {
		return records, ""
	}
	return records, longest.Ref.Path() + ", which waits for " + p.waitsBehind(longest, false)
}

// FormatTime returns a time as RFC 3339, in UTC.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
