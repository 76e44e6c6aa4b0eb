package nats

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

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
	if err != nil {
		return all(c.n, err)
	}
	if link.js == nil {
		_, errs := link.publish(ctx, c)
		return errs
	}
	if err := s.stream.ensure(ctx, link.js, false); err != nil {
		return all(c.n, err)
	}
	before := s.stream.highest.Load()
	futures, errs := link.publish(ctx, c)
	s.stream.acknowledged(before, link.await(ctx, futures, errs))
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
		if s.link != nil {
			<-s.link.down
		}
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the connection to NATS: %w", ctx.Err())
	}
}
