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

// delivery is one record of a Deliver call.
type delivery struct {
	message *nats.Msg
	future  jetstream.PubAckFuture // nil to core NATS
	ack     *jetstream.PubAck
	err     error
}

// publish sends the records, and returns once the server has read them: it answered a ping that was sent after them, over
// the same connection. To core NATS, the records without an error are then delivered. To JetStream, they have futures.
func (l *link) publish(ctx context.Context, deliveries []delivery) {
	seq, _, _ := l.refusals.state()
	err := l.sendAll(ctx, deliveries)
	for i := range deliveries {
		d := &deliveries[i]
		switch {
		case d.err != nil:
		case err != nil:
			d.err = l.classify(d.message.Subject, err)
		default:
			d.err = l.classify(d.message.Subject, l.refusals.since(seq, d.message.Subject))
		}
	}
}

// sendAll sends the records and notes the errors of single ones. It returns an error of the connection. Then the server may have read some
// of the records.
func (l *link) sendAll(ctx context.Context, deliveries []delivery) error {
	before := l.conn.LastError()
	for i := range deliveries {
		d := &deliveries[i]
		if d.err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := sinks.Fence(ctx); err != nil {
			return err
		}
		err := l.classify(d.message.Subject, l.send(d))
		if err != nil && !sinks.Classify(err).Permanent {
			return err
		}
		d.err = err
	}
	return l.flush(ctx, before)
}

func (l *link) send(d *delivery) (err error) {
	if l.js == nil {
		err = l.conn.PublishMsg(d.message)
	} else {
		d.future, err = l.js.PublishMsgAsync(d.message, jetstream.WithRetryAttempts(0))
	}
	d.message.Data = nil // nats.go has copied it, and keeps the message until the acknowledgement or its time-out
	return err
}

// classify returns err as the sink reports it, with the cause of a lost connection and the limit of the server.
func (l *link) classify(subject string, err error) error {
	if errors.Is(err, nats.ErrMaxPayload) {
		err = fmt.Errorf("%w: max_payload is %d bytes", err, l.conn.MaxPayload())
	}
	return classify(subject, l.cause(err))
}

// cause returns err, or why the connection was lost if it was: nats.go's errors do not all wrap that.
func (l *link) cause(err error) error {
	if err == nil || !l.conn.IsClosed() {
		return err
	}
	if last := l.conn.LastError(); last != nil {
		err = last
	}
	return connectionError("the connection to NATS was lost", err)
}

// flush returns once the server has read everything sent so far, and all errors that it reported are in l.refusals. nats.go sets LastError
// when it reads an error, which is before it reads the PONG. It calls back later, and in order: after the callback for the last error, all
// errors are there.
func (l *link) flush(ctx context.Context, before error) error {
	if err := l.conn.FlushWithContext(ctx); err != nil {
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
			return nats.ErrConnectionClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await waits for the acknowledgements of the records without an error. That of a duplicate is one too. It begins with the
// last: they come in order as a rule, so that this goroutine wakes once and not for each.
func (l *link) await(ctx context.Context, deliveries []delivery) {
	for i := range slices.Backward(deliveries) {
		d := &deliveries[i]
		if d.err != nil {
			continue
		}
		var err error
		select {
		case d.ack = <-d.future.Ok():
		case err = <-d.future.Err():
		case <-l.down:
			err = nats.ErrConnectionClosed
		case <-ctx.Done():
			err = fmt.Errorf("no acknowledgement: %w", ctx.Err())
		}
		d.err = l.classify(d.message.Subject, err)
	}
}
