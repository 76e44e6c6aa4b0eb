package sinks

import "time"

// Bytes is a size in bytes, written like a Kubernetes quantity: 512Ki, 64Mi, 10Gi.
type Bytes int64

// Common are the keys that every sink has. Embed it with `yaml:",inline"`.
type Common struct {
	Batch       Batch         `yaml:"batch" doc:"how records are gathered into one call"`
	Concurrency int           `yaml:"concurrency" doc:"how many batches are under way at the same time"`
	Timeout     time.Duration `yaml:"timeout" doc:"longest time that a batch may take"`
	TLS         *TLS          `yaml:"tls" doc:"TLS; {} for the defaults"`
}

// Batch limits the size of a batch, and how long it waits.
type Batch struct {
	MaxRecords int           `yaml:"maxRecords" doc:"most records in a batch"`
	MaxBytes   Bytes         `yaml:"maxBytes" doc:"most bytes in a batch. A larger record is sent alone"`
	Linger     time.Duration `yaml:"linger" doc:"how long a batch waits for more records"`
}

// Limits returns the common part of a sink's [Limits].
func (c *Common) Limits() Limits {
	return Limits{
		MaxRecords: c.Batch.MaxRecords, MaxBytes: int64(c.Batch.MaxBytes), Linger: c.Batch.Linger,
		Concurrency: c.Concurrency, Timeout: c.Timeout,
	}
}

// Validate returns the faults of the common keys.
func (c *Common) Validate() []Fault {
	var faults Faults
	faults.FailIf(c.Batch.MaxRecords < 1, "batch.maxRecords", "must be at least 1")
	faults.FailIf(c.Batch.MaxBytes < 1024, "batch.maxBytes", "must be at least 1Ki")
	faults.FailIf(c.Batch.Linger < 0, "batch.linger", "must be at least 0s")
	faults.FailIf(c.Concurrency < 1, "concurrency", "must be at least 1")
	faults.FailIf(c.Timeout < time.Millisecond, "timeout", "must be at least 1ms")
	if c.TLS != nil {
		c.TLS.validate(&faults, "tls")
	}
	return faults
}
