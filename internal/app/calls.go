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

	mu   sync.Mutex // guards what follows
	last int        // the number of the latest call
	ends map[int]time.Time
}

func newCalls(sink sinks.Sink) *calls { return &calls{Sink: sink, ends: map[int]time.Time{}} }

// Deliver implements [sinks.Sink].
func (c *calls) Deliver(ctx context.Context, batch []sinks.Record) error {
	end, ok := ctx.Deadline()
	if !ok {
		return c.Sink.Deliver(ctx, batch)
	}
	c.mu.Lock()
	c.last++
	number := c.last
	c.ends[number] = end
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.ends, number)
		c.mu.Unlock()
	}()
	return c.Sink.Deliver(ctx, batch)
}

// overdue returns for how long a call has gone on beyond its deadline, 0 if none has.
func (c *calls) overdue() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	longest := time.Duration(0)
	for _, end := range c.ends {
		longest = max(longest, time.Since(end))
	}
	return longest
}
