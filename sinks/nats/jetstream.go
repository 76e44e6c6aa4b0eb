package nats

import (
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

// store publishes to JetStream, then waits for the acknowledgements.
func store(ctx context.Context, l *link, c *call) []error {
	errs := make([]error, c.n)
	futures := make([]jetstream.PubAckFuture, c.n)
	mark := l.refusals.mark()
	maxPayload := l.conn.MaxPayload()
	options := []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)}
	for i := range c.n {
		message, err := c.message(ctx, i, maxPayload)
		if err == nil {
			futures[i], err = l.js.PublishMsgAsync(message, options...)
			err = classify(message.Subject, err)
		}
		errs[i] = err
		if err != nil && !sinks.Classify(err).Permanent { // of the connection, not of the record
			for j := i + 1; j < c.n; j++ {
				errs[j] = err
			}
			break
		}
	}
	// The last first: acknowledgements come in order as a rule, so that this goroutine wakes once and not for each.
	for i, future := range slices.Backward(futures) {
		if future != nil {
			errs[i] = classify(future.Msg().Subject, await(ctx, l, mark, future))
		}
	}
	return errs
}

// await waits for one acknowledgement. That of a duplicate is one too.
func await(ctx context.Context, l *link, mark int, future jetstream.PubAckFuture) error {
	select {
	case <-future.Ok(): // nearly always
		return nil
	default:
	}
	for {
		changed, _, inbox := l.refusals.state()
		select {
		case <-future.Ok():
			return nil
		case err := <-future.Err():
			return err
		default:
		}
		if inbox != nil {
			return fmt.Errorf("no acknowledgement can be received: %w", inbox)
		}
		if l.refusals.since(mark, future.Msg().Subject) {
			return errRefused
		}
		select {
		case <-future.Ok():
			return nil
		case err := <-future.Err():
			return err
		case <-changed:
		case <-l.down:
			return l.lost()
		case <-ctx.Done():
			return fmt.Errorf("no acknowledgement: %w", ctx.Err())
		}
	}
}
