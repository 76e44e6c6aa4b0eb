package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

// grace is what a Deliver call whose context has ended waits for nats.go to let go. It nearly always does at once;
// a write that is stuck lasts until the connection breaks.
const grace = 200 * time.Millisecond

var _ sinks.Sink = (*Sink)(nil)

// Sink delivers to NATS.
type Sink struct {
	subject sinks.Template
	timeout time.Duration
	links   *links
	stream  *stream
	calls   sync.WaitGroup
}

func open(config *Config, env sinks.Env) (*Sink, error) {
	subject, err := sinks.ParseTemplate(config.Subject)
	if err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	s := &Sink{
		subject: subject,
		timeout: config.Timeout,
		links:   newLinks(config, env),
		stream:  &stream{config: config.Stream, subject: config.Subject, log: env.Logger},
	}
	s.links.currentOrAttempt() // early: the first record then need not wait for it
	if config.JetStream && config.Stream != nil {
		s.calls.Go(func() { s.stream.prepare(s.links.life, s.links) })
	}
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
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()

	// nats.go takes no context where it matters: a lock, a write, a dial. So all of it is done on the side.
	c := &call{subject: s.subject, batch: batch, n: len(batch)}
	done := make(chan []error, 1)
	s.calls.Go(func() { done <- s.deliver(ctx, c) })
	select {
	case errs := <-done:
		return sinks.Result(errs)
	case <-ctx.Done():
	}
	c.stop()
	select {
	case errs := <-done:
		return sinks.Result(errs)
	case <-time.After(grace):
		return fmt.Errorf("nats: %w", ctx.Err())
	}
}

func (s *Sink) deliver(ctx context.Context, c *call) []error {
	link, err := s.links.get(ctx)
	switch {
	case err != nil:
		return all(c.n, err)
	case link.js == nil:
		return publish(ctx, link, c)
	}
	if err := s.stream.ensure(ctx, link.js, false); err != nil {
		return all(c.n, err)
	}
	seen := s.stream.watch()
	errs := store(ctx, link, c, seen)
	seen.end()
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil && reasonOf(err) == sinks.ReasonNotFound }) {
		s.stream.forget()
	}
	return errs
}

func all(n int, err error) []error { return slices.Repeat([]error{err}, n) }

// Close implements [sinks.Sink].
func (s *Sink) Close(ctx context.Context) error {
	s.links.close(ctx)
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
func store(ctx context.Context, l *link, c *call, seen *watch) []error {
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
			ack, err := await(ctx, l, mark, future)
			if err == nil {
				seen.took(ack)
			}
			errs[i] = classify(future.Msg().Subject, err)
		}
	}
	return errs
}

// await waits for one acknowledgement. That of a duplicate is one too.
func await(ctx context.Context, l *link, mark int, future jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-future.Ok(): // nearly always
		return ack, nil
	default:
	}
	for {
		changed, _, inbox := l.refusals.state()
		select {
		case ack := <-future.Ok():
			return ack, nil
		case err := <-future.Err():
			return nil, err
		default:
		}
		if inbox != nil {
			return nil, fmt.Errorf("no acknowledgement can be received: %w", inbox)
		}
		if l.refusals.since(mark, future.Msg().Subject) {
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

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker]: it connects and logs in, and looks for the stream, or without a name for one that
// takes the subject. What in that stream breaks a promise is warned about in the log.
func (s *Sink) Check(ctx context.Context) error {
	s.stream.look()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	link, err := s.links.get(ctx)
	if err != nil {
		return advise(err)
	}
	if link.js == nil {
		if err := link.conn.FlushWithContext(ctx); err != nil {
			return advise(transient(fmt.Errorf("ping %s: %w", link.conn.ConnectedAddr(), err)))
		}
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	if err := s.stream.check(asking, link); err != nil || ctx.Err() == nil {
		return err
	}
	return transient(fmt.Errorf("check the stream: %w", ctx.Err()))
}

// advise adds what to do about the failure to connect.
func advise(err error) error {
	advice := ""
	switch class := sinks.Classify(err); {
	case class.Reason == sinks.ReasonUnauthorized:
		advice = "check credsFile, nkeySeedFile, username and its password, tokenFile, or tls.certFile: the server refuses what it gets"
	case errors.Is(err, nats.ErrSecureConnWanted):
		advice = "the server has no TLS: leave tls out, or enable it there"
	case class.Reason == sinks.ReasonUnreachable, class.Reason == sinks.ReasonTimeout:
		advice = "check urls, and that a NATS server listens there"
	}
	return sinks.Advise(err, advice)
}

// codeHeaderTooLarge is JSStreamHeaderExceedsMaximumErr of the server's errors.json; nats.go has no name for it.
const codeHeaderTooLarge jetstream.ErrorCode = 10097

// classify returns err as the sink reports it; subject is the record's.
func classify(subject string, err error) error {
	var classified *sinks.Error
	if err == nil || errors.As(err, &classified) {
		return err
	}
	api := apiError(err)
	switch {
	case errors.Is(err, nats.ErrMaxPayload),
		api != nil && (api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || api.ErrorCode == codeHeaderTooLarge):
		return sinks.Permanent(sinks.ReasonTooLarge, fmt.Errorf("subject %q: %w", subject, err))
	case errors.Is(err, nats.ErrBadHeaderMsg), errors.Is(err, nats.ErrBadSubject):
		return sinks.Permanent(sinks.ReasonEncode, fmt.Errorf("subject %q: %w", subject, err))
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("no stream takes subject %q: %w", subject, err))
	default:
		return sinks.Transient(reasonOf(err), fmt.Errorf("subject %q: %w", subject, err))
	}
}

// transient classifies an error that would fail any record.
func transient(err error) error { return sinks.Transient(reasonOf(err), err) }

func reasonOf(err error) sinks.Reason {
	var classified *sinks.Error
	switch {
	case errors.As(err, &classified):
		return classified.Reason
	case apiError(err) != nil:
		return reasonOfAPI(apiError(err))
	case is(err, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation):
		return sinks.ReasonUnauthorized
	case is(err, jetstream.ErrStreamNotFound):
		return sinks.ReasonNotFound
	case is(err, jetstream.ErrAsyncPublishTimeout, nats.ErrTimeout):
		return sinks.ReasonTimeout
	case is(err, jetstream.ErrTooManyStalledMsgs, nats.ErrMaxConnectionsExceeded, nats.ErrMaxAccountConnectionsExceeded):
		return sinks.ReasonUnavailable
	case is(err, nats.ErrNoServers, nats.ErrConnectionClosed, nats.ErrDisconnected, nats.ErrStaleConnection,
		nats.ErrConnectionDraining, nats.ErrInvalidConnection, nats.ErrTLS, nats.ErrSecureConnWanted, nats.ErrNoInfoReceived):
		return sinks.ReasonUnreachable
	default:
		return sinks.Classify(err).Reason
	}
}

// apiError returns the answer of JetStream in err, nil if there is none.
func apiError(err error) *jetstream.APIError {
	var answer jetstream.JetStreamError
	if errors.As(err, &answer) {
		return answer.APIError()
	}
	return nil
}

// reasonOfAPI goes by the HTTP-like code: the exact ones are many, and new versions add to them (errors.json of the
// server). A full stream is a 503 (JSStreamStoreFailed).
func reasonOfAPI(api *jetstream.APIError) sinks.Reason {
	switch {
	case api.Code == 401 || api.Code == 403:
		return sinks.ReasonUnauthorized
	case api.Code == 404:
		return sinks.ReasonNotFound
	case api.Code == 408:
		return sinks.ReasonTimeout
	case api.Code == 429:
		return sinks.ReasonThrottled
	case api.Code >= 500:
		return sinks.ReasonUnavailable
	default:
		return sinks.ReasonRejected
	}
}

func is(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
