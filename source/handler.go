package source

import (
	"context"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Handler takes what a source observes. Each watch calls it in order, from one goroutine at a time; several watches call it
// at once.
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

// Recipient is one pipeline, as its snapshots see it. Several goroutines may call it.
type Recipient interface {
	// Offer is [Handler.Delta] for a record of a snapshot, but it never blocks: it sends nothing and returns false while the
	// pipeline holds much that is not delivered. have is set if the pipeline has the object.
	Offer(ctx context.Context, d *delta.Delta, have bool, record func(passed bool)) bool
	// OfferMark is Offer for a mark. What follows in the watch waits until the mark is settled.
	OfferMark(m *delta.Mark, record func()) bool
	// Room waits until an offer may succeed. An error means that ctx has ended.
	Room(ctx context.Context) error
	// Settled waits until all records of snapshots of a watch are settled, and returns what Died does then. An error means that
	// ctx has ended.
	Settled(ctx context.Context, watch string) (died bool, err error)
	// Undelivered returns how many records of snapshots of a watch are not settled, and in words what these wait for; empty if nothing fails.
	Undelivered(watch string) (records int, waitsFor string)
	// Former reports whether something is not settled that the last run left of a watch.
	Former(watch string) bool
	// Died reports whether a record of a snapshot of a watch went to the dead letter since the last one started, or since the
	// program did.
	Died(watch string) bool
}

// Recipients are the pipelines that a delta is for.
type Recipients struct {
	Pipelines PipelineSet
	// Have are the pipelines that have the object: their filters let its previous version pass. After a kill also those that perhaps
	// got it in a snapshot.
	Have PipelineSet
	// RecordOnly are those of Pipelines that are sent nothing: their filters only decide whether they count as having the object.
	RecordOnly PipelineSet
	// Left is set if the object exists, and is not selected any more: the DELETED is for those pipelines only that announce
	// what leaves.
	Left bool
}
