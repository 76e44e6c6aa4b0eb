package nats

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

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
