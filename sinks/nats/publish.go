package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

// publish sends the records, and returns once the server has read them: it answered a ping that was sent after them, over
// the same connection. To core NATS, the records without an error are then delivered. To JetStream, they have futures.
func (l *link) publish(ctx context.Context, c *call) ([]jetstream.PubAckFuture, []error) {
	futures, errs, subjects := make([]jetstream.PubAckFuture, c.n), make([]error, c.n), make([]string, c.n)
	seq, _, _ := l.refusals.state()
	before := l.conn.LastError()
	for i := range c.n {
		message, err := c.message(ctx, i)
		if err == nil {
			subjects[i] = message.Subject
			futures[i], err = l.send(message)
			err = classify(message.Subject, err)
		}
		errs[i] = err
		if err != nil && !sinks.Classify(err).Permanent { // of the connection, not of the record
			copy(errs[i:], all(c.n-i, err))
			break
		}
	}
	err := l.flush(ctx, before)
	for i, subject := range subjects {
		switch {
		case errs[i] != nil:
		case err != nil:
			errs[i] = classify(subject, err)
		default:
			errs[i] = classify(subject, l.refusals.since(seq, subject))
		}
	}
	return futures, errs
}

// send sends one message. To core NATS there is no future.
func (l *link) send(message *nats.Msg) (future jetstream.PubAckFuture, err error) {
	if l.js == nil {
		err = l.conn.PublishMsg(message)
	} else {
		future, err = l.js.PublishMsgAsync(message, jetstream.WithRetryAttempts(0))
	}
	switch {
	case errors.Is(err, nats.ErrConnectionClosed):
		err = l.lost()
	case errors.Is(err, nats.ErrMaxPayload):
		err = fmt.Errorf("%w: max_payload is %d bytes", err, l.conn.MaxPayload())
	}
	return future, err
}

// flush returns once the server has read everything sent so far and all its complaints are in l.refusals. nats.go sets
// LastError when it reads a complaint, that is before it reads the PONG, and calls back later, in order: after the
// callback of the last error, all are there.
func (l *link) flush(ctx context.Context, before error) error {
	if err := l.conn.FlushWithContext(ctx); err != nil {
		if errors.Is(err, nats.ErrConnectionClosed) {
			return l.lost()
		}
		return err
	}
	for {
		_, changed, reported := l.refusals.state()
		last := l.conn.LastError()
		if last == before || last == reported { //nolint:errorlint // identity: the very same report
			return nil
		}
		select {
		case <-changed:
		case <-l.down:
			return l.lost()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await waits for the acknowledgements of the records without an error. That of a duplicate is one too. It begins with the
// last: they come in order as a rule, so that this goroutine wakes once and not for each.
func (l *link) await(ctx context.Context, futures []jetstream.PubAckFuture, errs []error) []*jetstream.PubAck {
	acks := make([]*jetstream.PubAck, len(futures))
	for i, future := range slices.Backward(futures) {
		if errs[i] != nil {
			continue
		}
		var err error
		select {
		case acks[i] = <-future.Ok():
		case err = <-future.Err():
		case <-l.down:
			err = l.lost()
		case <-ctx.Done():
			err = fmt.Errorf("no acknowledgement: %w", ctx.Err())
		}
		errs[i] = classify(future.Msg().Subject, err)
	}
	return acks
}
