// Package line delivers records to a TCP server, one line each. It is where docs/new-sink.md says to begin with a new sink.
package line

import (
	"context"
	"net"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// Kind is the entry of this sink in the registry.
func Kind() sinks.Kind {
	return sinks.Kind{Name: "line", New: func() sinks.Config { return NewConfig() }}
}

// Config is the section of the configuration file.
type Config struct {
	sinks.Common `yaml:",inline"`

	Address   string `yaml:"address" doc:"host:port of the server"`
	TokenFile string `yaml:"tokenFile" doc:"file with the token to log in with; read again for each connection"`
}

// NewConfig returns the defaults.
func NewConfig() *Config {
	return &Config{Common: sinks.Common{
		Batch:       sinks.Batch{MaxRecords: 100, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond},
		Concurrency: 2,
		Timeout:     10 * time.Second,
	}}
}

// Validate implements [sinks.Config]: whatever can be found without a connection, all of it at once.
func (c *Config) Validate() []sinks.Fault {
	faults := sinks.Faults(c.Common.Validate())
	if _, _, err := net.SplitHostPort(c.Address); err != nil {
		faults.Fail("address", "must be host:port")
	}
	if c.TokenFile == "" {
		faults.Fail("tokenFile", "missing")
	}
	if c.TLS != nil {
		faults.Warn("tls", "has no effect here")
	}
	return faults
}

// Limits implements [sinks.Config]. The server takes each line by itself, so nothing would keep the later record of
// an object from being stored when the earlier one was refused: there is at most one in a batch.
func (c *Config) Limits() sinks.Limits {
	limits := c.Common.Limits()
	limits.OnePerKey = true
	return limits
}

// Open implements [sinks.Config]. The server may be away; a file that is missing is a mistake.
func (c *Config) Open(context.Context, sinks.Env) (sinks.Sink, error) {
	if _, err := sinks.ReadSecret("tokenFile", c.TokenFile, ""); err != nil {
		return nil, err
	}
	return &Sink{config: c}, nil
}
