package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/pipeline/flow"
	"github.com/kubeferry/kubeferry/sinks"
)

// OpenSink is a sink with the limits of its configuration.
type OpenSink struct {
	sinks.Sink
	Limits sinks.Limits
	calls  *calls
	slots  *flow.Slots
}

// usedSinks are the sinks that some pipeline delivers to, or writes its dead letters to.
func usedSinks(loaded *config.Config) []config.Sink {
	return slices.DeleteFunc(slices.Clone(loaded.Sinks), func(s config.Sink) bool {
		return !slices.ContainsFunc(loaded.Pipelines, func(p config.Pipeline) bool { return p.Sink == s.Name || p.DeadLetter == s.Name })
	})
}

// OpenSinks opens sinks, by name. Pipelines that name the same sink share it.
func OpenSinks(ctx context.Context, configured []config.Sink, userAgent string, logger *slog.Logger) (map[string]OpenSink, error) {
	opened := map[string]OpenSink{}
	for _, c := range configured {
		env := sinks.Env{Name: c.Name, UserAgent: userAgent, Logger: logger.With("sink", c.Name)}
		sink, err := c.Config.Open(ctx, env)
		if err != nil {
			CloseSinks(ctx, opened, logger)
			return nil, fmt.Errorf("open sink %q: %w", c.Name, err)
		}
		limits, calls := c.Config.Limits(), &calls{Sink: sink}
		opened[c.Name] = OpenSink{Sink: calls, Limits: limits, calls: calls, slots: flow.NewSlots(limits.Concurrency)}
	}
	return opened, nil
}

// CloseSinks closes sinks within ctx. An error of one is logged.
func CloseSinks(ctx context.Context, opened map[string]OpenSink, logger *slog.Logger) {
	for name, sink := range opened {
		if err := sink.Close(ctx); err != nil {
			logger.Warn("close sink", "sink", name, "err", err)
		}
	}
}

// calls are the Deliver calls of a sink that are under way. Each has a deadline, at which the sink has to end it. A call that goes on
// holds its records and a worker until the process ends.
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
