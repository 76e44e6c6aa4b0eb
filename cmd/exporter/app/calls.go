package app

import (
	"context"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// calls are the Deliver calls of a sink that are under way. Each has a deadline, and the sink has to end it then; one that goes
// on holds its records, and a worker, for as long as the process lives.
type calls struct {
	sinks.Sink
	ends sync.Map // the deadline of each call, by a pointer that is its own
}

// Deliver implements [sinks.Sink].
func (c *calls) Deliver(ctx context.Context, batch []sinks.Record) error {
	if end, ok := ctx.Deadline(); ok {
		call := new(int)
		c.ends.Store(call, end)
		defer c.ends.Delete(call)
	}
	return c.Sink.Deliver(ctx, batch)
}

// overdue returns for how long a call has gone on beyond its deadline, 0 if none has.
func (c *calls) overdue() (longest time.Duration) {
	c.ends.Range(func(_, end any) bool {
		longest = max(longest, time.Since(end.(time.Time)))
		return true
	})
	return longest
}
