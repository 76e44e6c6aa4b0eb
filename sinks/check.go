package sinks

import "context"

// Checker is what an opened [Sink] may implement beside, for `exporter validate --connect`.
type Checker interface {
	// Check connects, authenticates as far as possible without sending a record, and looks for the topic, the
	// stream or the endpoint. It sends no record. Its error has what is wrong and what to do about it, never a
	// credential. It returns soon after ctx ends.
	Check(ctx context.Context) error
}
