package sinks

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Sink delivers records to one destination.
type Sink interface {
	// Deliver sends a batch and returns nil once every record in it is acknowledged. A *[BatchError] has the result of each
	// record; after any other error nothing counts as acknowledged. Deliver is called from up to
	// [Limits.Concurrency] goroutines at once. It returns soon after ctx ends, also while the peer does
	// not answer, and retries nothing itself. Between several requests it calls [Fence], as [Split] does.
	Deliver(ctx context.Context, batch []Record) error

	// Close frees what the sink holds, within ctx. No Deliver is running or follows. It may be called twice.
	Close(ctx context.Context) error
}

// Checker is an optional interface of an opened [Sink]. `kubeferry validate --connect` uses it.
type Checker interface {
	// Check connects, authenticates as far as possible without sending a record, and looks for the topic, the
	// stream or the endpoint. It sends no record. Its error has what is wrong and what to do about it, never a
	// credential. It returns soon after ctx ends.
	Check(ctx context.Context) error
}

// Config is the section of one sink in the configuration file, under its kind. Its fields carry yaml tags; a struct
// tag doc:"…" becomes the description in the JSON Schema. Pointers returned by [Kind.New] hold the defaults.
type Config interface {
	// Validate returns every fault that can be found without a connection.
	Validate() []Fault
	// Limits returns how the pipeline shall cut batches for this sink.
	Limits() Limits
	// Open makes the sink. It does not wait for the peer and does not fail because the peer is away: Deliver
	// connects, and returns an error when it cannot.
	Open(ctx context.Context, env Env) (Sink, error)
}

// Kind is one kind of sink, as the registry in cmd/exporter lists it.
type Kind struct {
	// Name is the key in the configuration file: kafka, nats, webhook …
	Name string
	// New returns a pointer to a configuration with its defaults set.
	New func() Config
}

// Env is what a sink gets from the program around it.
type Env struct {
	// Name of the sink in the configuration file.
	Name string
	// UserAgent names the program and its version to peers.
	UserAgent string
	Logger    *slog.Logger
}

// Limits bound what a pipeline hands to a sink.
type Limits struct {
	// MaxRecords and MaxBytes bound one batch; a single record may exceed MaxBytes and then travels alone.
	MaxRecords int
	MaxBytes   int64
	// Linger is how long a batch that is not full waits for more.
	Linger time.Duration
	// Concurrency is how many Deliver calls may run at once.
	Concurrency int
	// Timeout bounds one Deliver call.
	Timeout time.Duration
	// OnePerKey limits a batch to one record of each key.
	OnePerKey bool
	// LosesHeaders is set if a batch arrives as one body, without the headers of its records.
	LosesHeaders bool
}

// Fault is a mistake in a sink's configuration. Path is relative to the sink's own section: "tls.caFile".
type Fault struct {
	Path    string
	Message string
	// Warning marks a choice that works but gives up a promise.
	Warning bool
}

// Faults gathers the faults of a configuration.
type Faults []Fault

// Fail adds a fault; format and args are those of [fmt.Sprintf].
func (f *Faults) Fail(path, format string, args ...any) {
	*f = append(*f, Fault{Path: path, Message: fmt.Sprintf(format, args...)})
}

// Warn adds a warning.
func (f *Faults) Warn(path, format string, args ...any) {
	*f = append(*f, Fault{Path: path, Message: fmt.Sprintf(format, args...), Warning: true})
}

// FailIf adds a fault if bad is set.
func (f *Faults) FailIf(bad bool, path, format string, args ...any) {
	if bad {
		f.Fail(path, format, args...)
	}
}

// WarnIf adds a warning if bad is set.
func (f *Faults) WarnIf(bad bool, path, format string, args ...any) {
	if bad {
		f.Warn(path, format, args...)
	}
}
