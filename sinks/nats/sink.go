package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
		return result(errs)
	case <-ctx.Done():
	}
	c.stop()
	select {
	case errs := <-done:
		return result(errs)
	case <-time.After(grace):
		return fmt.Errorf("nats: %w", ctx.Err())
	}
}

func result(errs []error) error {
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return &sinks.BatchError{Errs: errs}
	}
	return nil
}

func (s *Sink) deliver(ctx context.Context, c *call) []error {
	link, err := s.links.get(ctx)
	switch {
	case err != nil:
		return all(c.n, err)
	case link.js == nil:
		return publish(ctx, link, c)
	}
	if err := s.stream.ensure(ctx, link.js); err != nil {
		return all(c.n, err)
	}
	errs := store(ctx, link, c)
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

// apiPatience bounds one question to JetStream's API. A user without the right to ask it gets no answer.
const apiPatience = 3 * time.Second

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker]: it connects and logs in, and looks for the stream, or without a name for one that
// takes the subject. What in that stream breaks a promise is warned about in the log.
func (s *Sink) Check(ctx context.Context) error {
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
	return s.stream.check(asking, link.js)
}

func (s *stream) check(ctx context.Context, js jetstream.JetStream) error {
	needed := pattern(s.subject)
	var found []*jetstream.StreamInfo
	var err error
	if s.config == nil {
		found, err = streamsOf(ctx, js, needed)
	} else {
		var stream jetstream.Stream
		if stream, err = js.Stream(ctx, s.config.Name); err == nil {
			found = append(found, stream.CachedInfo())
		}
	}
	name := ""
	if s.config != nil {
		name = fmt.Sprintf(" %q", s.config.Name)
	}
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && s.config.Create:
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("stream%s does not exist: create it for the subject %s, or set stream.create: true", name, needed))
	case is(err, jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount, nats.ErrNoResponders):
		return sinks.Transient(sinks.ReasonUnavailable, fmt.Errorf("JetStream is not enabled for this user: enable it, or set jetstream: false: %w", err))
	case is(err, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrPermissionViolation):
		s.log.Warn("stream cannot be checked: JetStream does not answer, or this user may not ask", "err", err)
		return nil // to publish, no right to look is needed
	case err != nil:
		return transient(fmt.Errorf("look for stream%s: %w", name, err))
	case len(found) == 0:
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("no stream takes the subject %s: create one, or set stream.name and stream.create: true", needed))
	}
	for _, info := range found {
		if !slices.ContainsFunc(info.Config.Subjects, func(filter string) bool { return overlaps(filter, needed) }) {
			return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("stream %q takes %s and not the subject %s: add it to the stream, or change subject",
				info.Config.Name, strings.Join(info.Config.Subjects, " "), needed))
		}
		s.inspect(&info.Config)
	}
	return nil
}

// streamsOf returns the streams that take a subject of the pattern.
func streamsOf(ctx context.Context, js jetstream.JetStream, needed string) (found []*jetstream.StreamInfo, err error) {
	list := js.ListStreams(ctx, jetstream.WithStreamListSubject(needed))
	for info := range list.Info() {
		found = append(found, info)
	}
	return found, list.Err()
}

// advise adds what to do about the failure to connect.
func advise(err error) error {
	advice := ""
	switch class := sinks.Classify(err); {
	case class.Reason == sinks.ReasonUnauthorized:
		advice = "check credsFile, nkeySeedFile, username and its password, tokenFile, or tls.certFile: the server refuses what it gets"
	case is(err, nats.ErrSecureConnWanted):
		advice = "the server has no TLS: leave tls out, or enable it there"
	case tlsTrouble(err):
		advice = "check tls.caFile and tls.serverName"
	case class.Reason == sinks.ReasonUnreachable, class.Reason == sinks.ReasonTimeout:
		advice = "check urls, and that a NATS server listens there"
	default:
		return err
	}
	return sinks.Transient(sinks.Classify(err).Reason, fmt.Errorf("%w: %s", err, advice))
}
