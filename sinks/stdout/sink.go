// Package stdout writes records to standard output, one JSON value per line.
package stdout

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// Kind is the entry of this sink in the registry.
func Kind() sinks.Kind {
	return sinks.Kind{Name: "stdout", New: func() sinks.Config { return NewConfig() }}
}

// Config is the section of the configuration file.
type Config struct {
	sinks.Common `yaml:",inline"`
}

// NewConfig returns the defaults.
func NewConfig() *Config {
	return &Config{Common: sinks.Common{
		Batch:       sinks.Batch{MaxRecords: 1000, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond},
		Concurrency: 1,
		Timeout:     10 * time.Second,
	}}
}

// Validate implements [sinks.Config].
func (c *Config) Validate() []sinks.Fault {
	faults := c.Common.Validate()
	warn := func(path, message string) {
		faults = append(faults, sinks.Fault{Path: path, Message: message, Warning: true})
	}
	if c.Concurrency > 1 {
		warn("concurrency", "has no effect: standard output has one writer")
	}
	if c.TLS != nil {
		warn("tls", "has no effect on standard output")
	}
	return faults
}

// Limits implements [sinks.Config].
func (c *Config) Limits() sinks.Limits {
	limits := c.Common.Limits()
	limits.Concurrency = 1
	return limits
}

// Open implements [sinks.Config]. A program whose standard output may be closed must ignore SIGPIPE, which else ends
// it before the sink can say so.
func (c *Config) Open(context.Context, sinks.Env) (sinks.Sink, error) {
	return newSink(os.Stdout), nil
}

// Sink writes to one stream.
type Sink struct {
	turn chan struct{} // holds one element while someone owns what follows
	out  io.Writer
	torn bool // the last write ended within a line
}

var _ sinks.Sink = (*Sink)(nil)

func newSink(out io.Writer) *Sink { return &Sink{turn: make(chan struct{}, 1), out: out} }

// Deliver implements [sinks.Sink]. A write to a pipe that nobody reads cannot be cancelled, so it runs beside: if ctx
// ends first its result is unknown, and the next call waits for it.
func (s *Sink) Deliver(ctx context.Context, batch []sinks.Record) error {
	if err := ctx.Err(); err != nil || len(batch) == 0 {
		return err
	}
	size := 1
	for i := range batch {
		size += batch[i].Size() + 1
	}
	lines := make([]byte, 1, size)
	lines[0] = '\n' // written only after a torn line
	for i := range batch {
		lines = append(append(lines, batch[i].Structured()...), '\n')
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("an earlier write to standard output has not ended: %w", ctx.Err())
	}
	done := make(chan error, 1)
	go func() {
		err := s.write(lines)
		<-s.turn
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return sinks.Transient(sinks.ReasonUnreachable, fmt.Errorf("write to standard output: %w", err))
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("write to standard output: %w", ctx.Err())
	}
}

func (s *Sink) write(lines []byte) error {
	if !s.torn {
		lines = lines[1:]
	}
	n, err := s.out.Write(lines)
	if n > 0 {
		s.torn = lines[n-1] != '\n'
	}
	return err
}

// Close implements [sinks.Sink]. Standard output stays open.
func (s *Sink) Close(context.Context) error { return nil }

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer].
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	return sinks.Destination{Place: "standard output", Body: r.Structured()}
}
