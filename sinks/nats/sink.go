package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

// grace is how long a call whose context has ended waits for nats.go to return. It nearly always does at once; a write
// that is stuck lasts until the connection breaks.
const grace = 200 * time.Millisecond

var _ sinks.Sink = (*Sink)(nil)

// Sink delivers to NATS.
type Sink struct {
	config  *Config
	subject sinks.Template
	name    string // of its connections
	log     *slog.Logger
	stream  *stream

	life  context.Context // ends every connection
	end   context.CancelFunc
	calls sync.WaitGroup
	turn  chan struct{} // holds one element while a call uses link
	link  *link         // nil if there was none yet
}

func open(config *Config, env sinks.Env) (*Sink, error) {
	subject, err := sinks.ParseTemplate(config.Subject)
	if err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	stream := &stream{config: &Stream{}, subject: config.Subject, log: env.Logger}
	if config.Stream != nil {
		stream.config = config.Stream
	}
	life, end := context.WithCancel(context.Background())
	s := &Sink{
		config:  config,
		subject: subject,
		name:    env.UserAgent + " " + env.Name,
		log:     env.Logger,
		stream:  stream,
		life:    life,
		end:     end,
		turn:    make(chan struct{}, 1),
	}
	s.calls.Go(func() { s.prepare(life) })
	return s, nil
}

// Deliver implements [sinks.Sink].
func (s *Sink) Deliver(ctx context.Context, batch []sinks.Record) error {
	if len(batch) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &call{subject: s.subject, batch: batch, n: len(batch)}
	return s.beside(ctx, c.stop, func(ctx context.Context) error { return sinks.Result(s.deliver(ctx, c)) })
}

// beside runs a call in a goroutine of its own, since nats.go takes no context where it may block: for a lock, a write, a
// dial. If ctx or the timeout ends first, it stops the call and does not wait for it longer than grace.
func (s *Sink) beside(ctx context.Context, stop func(), call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	done := make(chan error, 1)
	s.calls.Go(func() { done <- call(ctx) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop()
	select {
	case err := <-done:
		return err
	case <-time.After(grace):
		return fmt.Errorf("nats: %w", ctx.Err())
	}
}

func (s *Sink) deliver(ctx context.Context, c *call) []error {
	link, err := s.connection(ctx)
	switch {
	case err != nil:
		return all(c.n, err)
	case link.js == nil:
		return publish(ctx, link, c)
	}
	if err := s.stream.ensure(ctx, link.js, false); err != nil {
		return all(c.n, err)
	}
	before := s.stream.highest.Load()
	acks, errs := store(ctx, link, c)
	s.stream.acknowledged(before, acks)
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil && reasonOf(err) == sinks.ReasonNotFound }) {
		s.stream.forget()
	}
	return errs
}

func all(n int, err error) []error { return slices.Repeat([]error{err}, n) }

// Close implements [sinks.Sink]. It breaks the connection in any state: what was delivered is acknowledged.
func (s *Sink) Close(ctx context.Context) error {
	s.end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.calls.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the connection to NATS: %w", ctx.Err())
	}
}

// store publishes to JetStream, then waits for the acknowledgements.
func store(ctx context.Context, l *link, c *call) (acks []*jetstream.PubAck, errs []error) {
	acks, errs = make([]*jetstream.PubAck, c.n), make([]error, c.n)
	futures := make([]jetstream.PubAckFuture, c.n)
	seq, _, _ := l.refusals.state()
	options := []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)}
	for i := range c.n {
		message, err := c.message(ctx, i)
		if err == nil {
			futures[i], err = l.js.PublishMsgAsync(message, options...)
			err = classify(message.Subject, l.withLimit(err))
		}
		errs[i] = err
		if err != nil && !sinks.Classify(err).Permanent { // of the connection, not of the record
			copy(errs[i:], all(c.n-i, err))
			break
		}
	}
	// The last first: acknowledgements come in order as a rule, so that this goroutine wakes once and not for each.
	for i, future := range slices.Backward(futures) {
		if future != nil {
			var err error
			acks[i], err = await(ctx, l, seq, future)
			errs[i] = classify(future.Msg().Subject, err)
		}
	}
	return acks, errs
}

// await waits for one acknowledgement. That of a duplicate is one too.
func await(ctx context.Context, l *link, seq int, future jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	for {
		_, _, changed := l.refusals.state()
		refused := l.refusals.since(seq, future.Msg().Subject)
		select { // first, since an acknowledgement outweighs a doubt
		case ack := <-future.Ok():
			return ack, nil
		case err := <-future.Err():
			return nil, err
		default:
		}
		if refused {
			return nil, errRefused
		}
		select {
		case ack := <-future.Ok():
			return ack, nil
		case err := <-future.Err():
			return nil, err
		case <-changed:
		case <-l.down:
			return nil, l.lost()
		case <-ctx.Done():
			return nil, fmt.Errorf("no acknowledgement: %w", ctx.Err())
		}
	}
}

// publish sends to core NATS. The records are delivered if the server answered a ping that was sent after them, over
// the same connection, and refused none meanwhile.
func publish(ctx context.Context, l *link, c *call) []error {
	errs := make([]error, c.n)
	subjects := make([]string, c.n)
	seq, _, _ := l.refusals.state()
	before := l.conn.LastError()
	for i := range c.n {
		message, err := c.message(ctx, i)
		if err == nil {
			subjects[i] = message.Subject
			err = classify(message.Subject, l.withLimit(l.conn.PublishMsg(message)))
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
		if errs[i] == nil && l.refusals.since(seq, subjects[i]) {
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
		_, reported, changed := l.refusals.state()
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
