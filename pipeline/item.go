package pipeline

import (
	"strconv"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	sched "github.com/kubeferry/kubeferry/pipeline/flow"
	"github.com/kubeferry/kubeferry/sinks"
)

// noticeSize is what a gap or a mark counts towards the bound of the backlog.
const noticeSize = 1024

// gapName and markName are before the id of the watch or the snapshot in the reference of gaps and marks: names that no object has.
const (
	gapName  = "/gap/"
	markName = "/snapshot/"
)

// noticeNamespace is the flow of gaps and marks: a name that no namespace has.
const noticeNamespace = "/notice"

// item is a delta, a gap or a mark that is not settled. Gaps and marks are notices.
type item struct {
	sched.Item

	delta *delta.Delta // nil while it is on disk only
	gap   *delta.Gap
	mark  *delta.Mark

	watch    string
	observed time.Time
	size     int64
	// err is why the item cannot be sent as a record; it becomes a dead letter.
	err error
	// noBody is set on a gap or a mark whose custom body is null: it is settled in its turn, and not sent.
	noBody bool
	// final is why the item can never be delivered, while its dead letter could not be written.
	final *sinks.Error

	settled bool
	// refusedAt is set on a mark for which the sink had no place: one more than the number of deliveries that had succeeded by then.
	refusedAt uint64
	// seq is the item's number in the log, and logged is set once a commit has captured it.
	seq    uint64
	logged bool
	// restored is set on what the last run left.
	restored bool
	// snapshot is set on a record of a snapshot, and snapshotSequence is what a delta or a mark names.
	snapshot         bool
	snapshotSequence uint64
	// stub is set while the delta of a failing object is on disk only, and counts stubSize; inBatch while a batch holds the item.
	stub, inBatch bool
	// summary says what the delta is, once that has left memory.
	summary *summary
	// buffered is set while the item is not in the backlog: it waits for a commit, and is read back from the log.
	buffered bool

	flow *flow // that the item is, or was, in memory for
}

// summary is what a trace shows of a delta.
type summary struct {
	deltaType delta.Type
	version   string
}

// needsLetter reports whether the item is settled by its dead letter only.
func (i *item) needsLetter() bool { return i.err != nil || i.final != nil }

// newItem makes an item of what an entry holds.
func newItem(e delta.Entry) *item {
	var i *item
	// Gaps of other watches of the collection, and marks of other snapshots, need not wait behind one that is refused.
	switch d, g, m := e.Delta, e.Gap, e.Mark; {
	case g != nil:
		i = &item{gap: g, watch: g.Watch, observed: g.Observed, size: noticeSize}
		i.Ref = g.Ref()
		i.Ref.Name = gapName + g.Watch
	case m != nil:
		i = &item{mark: m, watch: m.Watch, observed: m.Observed, size: noticeSize, snapshotSequence: m.SnapshotSequence}
		i.Ref = m.Ref()
		i.Ref.Name = markName + m.Watch + "/" + strconv.FormatUint(m.SnapshotSequence, 10)
	default:
		i = &item{delta: d, watch: d.Watch, observed: d.Observed, size: d.Size(), snapshot: d.Snapshot, snapshotSequence: d.SnapshotSequence}
		i.Ref = d.Ref()
	}
	i.Flow, i.Value = noticeNamespace, i
	if !i.notice() {
		i.Flow = namespaceFlow(i.Ref.Namespace)
	}
	return i
}

// itemOf returns the item that the scheduler knows.
func itemOf(i *sched.Item) *item { return i.Value.(*item) } //nolint:forcetypeassert // newItem sets it

// notice reports whether the item is no delta.
func (i *item) notice() bool { return i.gap != nil || i.mark != nil }

// ofSnapshot reports whether the item is a record or a mark of a snapshot.
func (i *item) ofSnapshot() bool { return i.mark != nil || i.snapshot }
