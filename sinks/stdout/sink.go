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
	faults := sinks.Faults(c.Common.Validate())
	faults.WarnIf(c.Concurrency > 1, "concurrency", "has no effect: standard output has one writer")
	faults.WarnIf(c.TLS != nil, "tls", "has no effect on standard output")
	return faults
}

// Limits implements [sinks.Config].
func (c *Config) Limits() sinks.Limits {
	limits := c.Common.Limits()
	limits.Concurrency = 1
	return limits
}

// Open implements [sinks.Config]. A program whose standard output may be closed must ignore SIGPIPE, which else ends
// it before the sink can return an error.
func (c *Config) Open(context.Context, sinks.Env) (sinks.Sink, error) {
	return newSink(os.Stdout), nil
}

// Sink writes to one stream.
type Sink struct {
	writes *sinks.Serial

	out  io.Writer // belongs to writes, as what follows
	torn bool      // the last write ended within a line
}

var _ sinks.Sink = (*Sink)(nil)

func newSink(out io.Writer) *Sink {
	return &Sink{writes: sinks.NewSerial("write to standard output"), out: out}
}

// Deliver implements [sinks.Sink].
func (s *Sink) Deliver(ctx context.Context, batch []sinks.Record) error {
	if err := ctx.Err(); err != nil || len(batch) == 0 {
		return err
	}
	lines := sinks.AppendLines([]byte{'\n'}, batch)
	return s.writes.Do(ctx, func() error { return s.write(lines) })
}

// write writes lines, which begin with a line break that only a torn line needs.
func (s *Sink) write(lines []byte) error {
	if !s.torn {
		lines = lines[1:]
	}
	n, err := s.out.Write(lines)
	if n > 0 {
		s.torn = lines[n-1] != '\n'
	}
	if err != nil {
		return sinks.Transient(sinks.ReasonUnreachable, fmt.Errorf("write to standard output: %w", err))
	}
	return nil
}

// Close implements [sinks.Sink]. Standard output stays open.
func (s *Sink) Close(context.Context) error { return nil }

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer].
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	return sinks.Destination{Place: "standard output", Body: r.Structured()}
}
