package source

import (
	"context"
	"slices"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Handler receives what a source observes. Each watch calls it in order, from one goroutine at a time. Several watches call it
// at once. Delta and Gap may block: that holds up their watch, and nothing else.
type Handler interface {
	// Delta sends a delta to those recipients whose filters it passes. It may block to hold its watch back. record is
	// called in the same moment, so that a commit captures both or neither, with the recipients whose filters the object
	// passes. An error means that ctx has ended and that nothing was sent.
	Delta(ctx context.Context, d *delta.Delta, to Recipients, record func(passed PipelineSet)) error
	// Gap is Delta for a gap, to all pipelines. It precedes the inferred deltas that make up the net difference.
	Gap(ctx context.Context, g *delta.Gap, record func()) error
	// Update runs a change of what commits capture, while none captures.
	Update(change func())
	// Exclusive runs f while nothing else changes what commits capture, and none captures. A call that blocks does not hold it up.
	Exclusive(f func())
	// Commit returns once everything sent so far is committed, and a standby has that or is slow, or with an error when ctx has ended.
	Commit(ctx context.Context) error
	// Recipient returns one of the pipelines, for its snapshots.
	Recipient(pipeline int) Recipient
}

// NoPipelines is the part of a [Handler] that has no pipelines and commits nothing. Delta is missing.
type NoPipelines struct{}

// Gap implements [Handler].
func (NoPipelines) Gap(_ context.Context, _ *delta.Gap, record func()) error {
	record()
	return nil
}

// Update implements [Handler].
func (NoPipelines) Update(change func()) { change() }

// Exclusive implements [Handler].
func (NoPipelines) Exclusive(f func()) { f() }

// Commit implements [Handler].
func (NoPipelines) Commit(context.Context) error { return nil }

// Recipient implements [Handler]. There is none.
func (NoPipelines) Recipient(int) Recipient { return nil }

// Recipient is the part of a pipeline that its snapshots use. Several goroutines may call it.
type Recipient interface {
	// Offer is [Handler.Delta] for a record of a snapshot, but it never blocks: it sends nothing and returns false while the
	// pipeline holds much that is not delivered. have is set if the pipeline has the object.
	Offer(ctx context.Context, d *delta.Delta, have bool, record func(passed bool)) bool
	// OfferMark is Offer for a mark.
	OfferMark(m *delta.Mark, record func()) bool
	// Room waits until an offer may succeed. An error means that ctx has ended.
	Room(ctx context.Context) error
	// Settled waits until all that was sent of a watch before the call is settled. An error means that ctx has ended.
	Settled(ctx context.Context, watch string) error
	// Undelivered returns how many records of snapshots of a watch are not settled, and in words what these wait for; empty if nothing fails.
	Undelivered(watch string) (records int, waitsFor string)
	// Lacking returns what the snapshot of a watch that has a sequence lacks.
	Lacking(watch string, sequence uint64) Lacking
}

// Lacking is what a pipeline could not deliver of a snapshot.
type Lacking struct {
	// Objects are the REST paths of those whose records became dead letters, in order; at most a hundred.
	Objects []string `json:"objects,omitempty"`
	// More is set if others are missing, too: there were more, or it is not known which, or a filter kept objects back that the pipeline has.
	More bool `json:"more,omitempty"`
	// Mark is set if the mark became a dead letter, Unreadable if it is not known what a snapshot of the last run lacks.
	Mark, Unreadable bool `json:"-"`
}

func (l Lacking) equal(other Lacking) bool {
	return l.More == other.More && slices.Equal(l.Objects, other.Objects)
}

// none reports whether nothing is missing.
func (l *Lacking) none() bool { return len(l.Objects) == 0 && !l.More }

// For returns the delta as a pipeline sends it, which names the snapshot that runs there. last is what the previous pipeline got, or
// d. For returns last if that names the same snapshot, and else a copy of d that names it.
func (r *Recipients) For(pipeline int, d, last *delta.Delta) *delta.Delta {
	if r.Snapshots == nil || r.Snapshots[pipeline] == last.SnapshotSequence {
		return last
	}
	named := *d
	named.SnapshotSequence = r.Snapshots[pipeline]
	return &named
}

// Recipients are the pipelines that a delta is for.
type Recipients struct {
	Pipelines PipelineSet
	// Have are the pipelines that have the object: their filters let its previous version pass.
	Have PipelineSet
	// Snapshots has, by the number of the pipeline, what a record names of the snapshot of its watch: [delta.Delta.SnapshotSequence]. It is
	// nil if none runs.
	Snapshots []uint64
	// RecordOnly are those of Pipelines that are sent nothing: their filters only decide whether they count as having the object.
	RecordOnly PipelineSet
}
