// Package file appends records to a local file, one JSON value per line.
package file

import (
	"context"
	"path/filepath"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// Kind is the entry of this sink in the registry.
func Kind() sinks.Kind {
	return sinks.Kind{Name: "file", New: func() sinks.Config { return NewConfig() }}
}

// Config is the section of the configuration file.
type Config struct {
	sinks.Common `yaml:",inline"`

	Path string `yaml:"path" doc:"required: the file to append to, in a directory that exists. If it is moved away, a new one is made"`
	Sync bool   `yaml:"sync" doc:"whether each batch is forced to disk before it counts as delivered"`
}

// NewConfig returns the defaults.
func NewConfig() *Config {
	return &Config{
		Common: sinks.Common{
			Batch:       sinks.Batch{MaxRecords: 1000, MaxBytes: 4 << 20, Linger: 5 * time.Millisecond},
			Concurrency: 1,
			Timeout:     10 * time.Second,
		},
		Sync: true,
	}
}

// Validate implements [sinks.Config].
func (c *Config) Validate() []sinks.Fault {
	faults := sinks.Faults(c.Common.Validate())
	switch {
	case c.Path == "":
		faults.Fail("path", "missing")
	case !filepath.IsAbs(c.Path):
		faults.Warn("path", "is relative to wherever kubeferry is started")
	}
	faults.WarnIf(!c.Sync, "sync", "a crash of the machine can lose what counts as delivered")
	faults.WarnIf(c.Concurrency > 1, "concurrency", "has no effect: a file has one writer")
	faults.WarnIf(c.TLS != nil, "tls", "has no effect on a file")
	return faults
}

// Limits implements [sinks.Config].
func (c *Config) Limits() sinks.Limits {
	limits := c.Common.Limits()
	limits.Concurrency = 1
	return limits
}

// Open implements [sinks.Config]. The first Deliver opens the file; Open only warns of what will prevent it.
func (c *Config) Open(ctx context.Context, env sinks.Env) (sinks.Sink, error) {
	s := &Sink{path: c.Path, sync: c.Sync, writes: sinks.NewSerial("write to " + c.Path)}
	if err := s.Check(ctx); err != nil {
		env.Logger.Warn("the file of the sink cannot be written as it is; records wait until it can", "err", err)
	}
	return s, nil
}
