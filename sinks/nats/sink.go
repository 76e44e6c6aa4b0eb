package nats

import (
	"context"
	"fmt"
	"log/slog"
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

	life    context.Context // ends every connection
	end     context.CancelFunc
	running sync.WaitGroup // calls and connections

	mu   sync.Mutex // guards link, also while a connection is being made
	link *link      // nil if there was none yet
}

// Open implements [sinks.Config]. It connects to nothing.
func (c *Config) Open(ctx context.Context, env sinks.Env) (sinks.Sink, error) {
	stream := &stream{subject: c.Subject, log: env.Logger}
	if c.Stream != nil {
		stream.Stream = *c.Stream
	}
	s := &Sink{config: c, subject: sinks.NewTemplate(c.Subject), name: env.UserAgent + " " + env.Name, log: env.Logger, stream: stream}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

// Deliver implements [sinks.Sink].
func (s *Sink) Deliver(ctx context.Context, batch []sinks.Record) error {
	if err := ctx.Err(); err != nil || len(batch) == 0 {
		return err
	}
	deliveries := encode(s.subject, batch)
	return s.detached(ctx, func(ctx context.Context) error { return s.deliver(ctx, deliveries) })
}

// detached runs a call in a goroutine of its own, since nats.go takes no context where it may block: for a lock, a write,
// a dial. It returns at most grace after the end of ctx or of the timeout, also if the call does not.
func (s *Sink) detached(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	done := make(chan error, 1)
	s.running.Go(func() { done <- call(ctx) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(grace):
		return fmt.Errorf("nats: %w", ctx.Err())
	}
}

func (s *Sink) deliver(ctx context.Context, deliveries []delivery) error {
	link, err := s.ready(ctx)
	if err != nil {
		return err
	}
	link.publish(ctx, deliveries)
	if link.js != nil {
		link.await(ctx, deliveries)
	}
	errs := make([]error, len(deliveries))
	for i := range deliveries {
		errs[i] = deliveries[i].err
		s.stream.observe(&deliveries[i])
	}
	return sinks.Result(errs)
}

// ready returns a connection, and makes sure of the stream.
func (s *Sink) ready(ctx context.Context) (*link, error) {
	link, err := s.connection()
	if err != nil {
		return nil, err
	}
	return link, link.cause(s.stream.ensure(ctx, link.js))
}

// Close implements [sinks.Sink]. It breaks the connection in any state: what was delivered is acknowledged.
func (s *Sink) Close(ctx context.Context) error {
	s.end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.running.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the connection to NATS: %w", ctx.Err())
	}
}
