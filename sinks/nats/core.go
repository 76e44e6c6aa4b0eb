package nats

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"

	"github.com/kubeferry/kubeferry/sinks"
)

// publish sends to core NATS. The records are delivered if the server answered a ping that was sent after them, over
// the same connection, and refused none meanwhile.
func publish(ctx context.Context, l *link, c *call) []error {
	errs := make([]error, c.n)
	subjects := make([]string, c.n)
	mark, before := l.refusals.mark(), l.conn.LastError()
	maxPayload := l.conn.MaxPayload()
	for i := range c.n {
		message, err := c.message(ctx, i, maxPayload)
		if err == nil {
			subjects[i] = message.Subject
			err = classify(message.Subject, l.conn.PublishMsg(message))
		}
		if err != nil && !sinks.Classify(err).Permanent {
			return all(c.n, err)
		}
		errs[i] = err
	}
	if err := flush(ctx, l, before); err != nil {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = classify(subjects[i], err)
			}
		}
		return errs
	}
	for i := range errs {
		if errs[i] == nil && l.refusals.since(mark, subjects[i]) {
			errs[i] = classify(subjects[i], errRefused)
		}
	}
	return errs
}

// flush returns once the server has read everything sent so far and all that it complained about is in l.refusals.
// nats.go sets LastError when it reads the complaint, that is before it reads the PONG, and calls back later, in
// order: once the last error was called back, all were.
func flush(ctx context.Context, l *link, before error) error {
	if err := l.conn.FlushWithContext(ctx); err != nil {
		if errors.Is(err, nats.ErrConnectionClosed) {
			return l.lost()
		}
		return err
	}
	for {
		changed, reported, _ := l.refusals.state()
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
