package pipeline

import (
	"container/list"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// item is a delta, a gap or a mark that is not settled. Gaps and marks are notices: what follows in their watch waits until they
// are settled.
type item struct {
	delta *delta.Delta
	gap   *delta.Gap
	mark  *delta.Mark

	ref      delta.Ref
	watch    string
	observed time.Time
	size     int64
	attempts int
	// failed is when the first attempt failed.
	failed time.Time
	// err is why the item cannot be sent as a record; it goes to the dead letter.
	err error
	// final is why the item can never be delivered, while its dead letter could not be written.
	final *sinks.Error

	settled bool
	// released is set on a notice that holds nothing back any more, although it is not settled.
	released bool
	// releasedAt is the number of deliveries that had succeeded by then.
	releasedAt uint64
	// seq is the item's number in the log, and logged is set once a commit has captured it.
	seq    uint64
	logged bool
	// restored is set on what the last run left.
	restored bool
	// buffered is set while the item is not in the backlog: it waits for a commit, and is read back from the log.
	buffered bool

	flow *flow // that the item is, or was, in memory for
	// holds are the objects whose first held item waits for a notice.
	holds []delta.Ref

	arrival *list.Element // in the backlog's arrivals or loaded; nil while the item is not in memory
}

// needsLetter reports whether the item is settled by its dead letter only.
func (i *item) needsLetter() bool { return i.err != nil || i.final != nil }

// newItem makes an item of what an entry holds.
func newItem(e delta.Entry) *item {
	// Gaps of other watches of the collection, and marks of other snapshots, need not wait behind one that is refused.
	switch d, g, m := e.Delta, e.Gap, e.Mark; {
	case g != nil:
		ref := g.Ref()
		ref.Name = gapName + g.Watch
		return &item{gap: g, ref: ref, watch: g.Watch, observed: g.Observed, size: noticeSize}
	case m != nil:
		ref := m.Ref()
		ref.Name = markName + m.Snapshot
		return &item{mark: m, ref: ref, watch: m.Watch, observed: m.Observed, size: noticeSize}
	default:
		return &item{delta: d, ref: d.Ref(), watch: d.Watch, observed: d.Observed, size: d.Size()}
	}
}

// notice reports whether the item is no delta.
func (i *item) notice() bool { return i.delta == nil }

// ofSnapshot reports whether the item is a record or a mark of a snapshot.
func (i *item) ofSnapshot() bool { return i.mark != nil || i.delta != nil && i.delta.Snapshot }
