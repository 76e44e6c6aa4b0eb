package pipeline

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	sched "github.com/kubeferry/kubeferry/pipeline/flow"
)

// Waiting lists the records of one object that wait in a pipeline, and says what they wait for.
type Waiting struct {
	// Total counts the records, and Records are the first of them, in order.
	Total   int             `json:"total"`
	Records []WaitingRecord `json:"records"`
	Behind  string          `json:"behind,omitempty"`
	// Unsearched counts what waits on disk and was not searched for the object when the time was up.
	Unsearched uint64 `json:"unsearched,omitempty"`
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
}

// maxWaitingRecords bounds Waiting.Records.
const maxWaitingRecords = 20

// Waiting finds the records of an object that wait. It searches those on disk until ctx ends.
func (p *Pipeline) Waiting(ctx context.Context, ref delta.Ref) (Waiting, error) {
	w, disk := p.waitingInMemory(ref)
	for searched := uint64(0); disk.cursor < disk.written; {
		entries, _, err := p.options.Log.ReadFlow(disk.flow, disk.cursor, readBytes)
		if err != nil {
			return w, err
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			searched++
			disk.cursor = e.Seq + 1
			if e.Seq < disk.written && e.Delta != nil && e.Delta.Ref() == ref {
				w.add(p.logged(e), true)
			}
		}
		if ctx.Err() != nil {
			w.Unsearched = max(disk.behind, searched) - searched
			break
		}
	}
	w.Total += disk.unwritten.Total
	w.Records = append(w.Records, disk.unwritten.Records...)
	w.Records = w.Records[:min(len(w.Records), maxWaitingRecords)]
	if w.Total > 0 && w.Behind == "" {
		w.Behind = disk.why
	}
	return w, nil
}

func (w *Waiting) add(i *item, onDisk bool) {
	w.Total++
	if len(w.Records) == maxWaitingRecords {
		return
	}
	record := WaitingRecord{Observed: i.observed, Attempts: i.Attempts, FirstFailure: i.Failed, OnDisk: onDisk}
	if i.delta != nil {
		record.Type, record.ResourceVersion = i.delta.Type, i.delta.Object.ResourceVersion()
	} else {
		record.Type, record.ResourceVersion = i.summary.deltaType, i.summary.version
	}
	w.Records = append(w.Records, record)
}

// behindCursor is what is behind the cursor of a flow, and why it waits there.
type behindCursor struct {
	flow            string
	cursor, written uint64
	behind          uint64  // how much that is, of all flows
	unwritten       Waiting // what of it no commit has written, of one object
	why             string
}

// waitingInMemory returns what of an object is before the cursor of its flow, and what has to be searched for more.
func (p *Pipeline) waitingInMemory(ref delta.Ref) (w Waiting, disk behindCursor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	items, sent := p.scheduler.Waiting(ref)
	for _, i := range items {
		i := itemOf(i)
		w.add(i, i.delta == nil)
	}
	w.Behind = p.waitsBehind(first(items), sent)
	disk = behindCursor{flow: namespaceFlow(ref.Namespace), cursor: p.log.written, written: p.log.written, behind: p.log.behind}
	f := p.log.flows[disk.flow]
	if f == nil {
		return w, disk
	}
	if f.behind { // else what is in the log is in memory too, or settled
		disk.cursor = f.cursor
		disk.why = fmt.Sprintf("what waits on disk: %d changes", disk.behind)
	}
	if f.stopped {
		disk.why = fmt.Sprintf("other objects of its namespace: %d fail, and its further changes wait on disk", p.scheduler.Failing(f.name))
	}
	for _, i := range f.unwritten {
		if i.Ref == ref {
			disk.unwritten.add(i, false)
		}
	}
	return w, disk
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
	for items := range p.scheduler.Objects() {
		ofWatch := slices.ContainsFunc(items, func(i *sched.Item) bool { return itemOf(i).watch == watch })
		if head := first(items); ofWatch && head.Attempts > 0 && (longest == nil || head.Failed.Before(longest.Failed)) {
			longest = head
		}
	}
	if longest == nil {
		return records, ""
	}
	return records, longest.Ref.Path() + ", which waits for " + p.waitsBehind(longest, false)
}

// FormatTime returns a time as RFC 3339, in UTC.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
