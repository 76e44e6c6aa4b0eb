package sinks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"
)

// Reason classifies a failed delivery for metrics. The set is closed, so that it can be a label.
type Reason string

// The reasons that sinks give.
const (
	ReasonUnreachable  Reason = "unreachable"  // refused, reset, no route, no such host
	ReasonTimeout      Reason = "timeout"      // no answer in time
	ReasonCancelled    Reason = "cancelled"    // kubeferry is stopping
	ReasonUnauthorized Reason = "unauthorized" // credentials missing, wrong or without the right
	ReasonNotFound     Reason = "not_found"    // no such topic, stream or path
	ReasonThrottled    Reason = "throttled"    // the peer requests a lower rate
	ReasonUnavailable  Reason = "unavailable"  // the peer answered, and cannot take anything now
	ReasonTooLarge     Reason = "too_large"    // this record is larger than the peer takes
	ReasonRejected     Reason = "rejected"     // the peer refuses this record
	ReasonEncode       Reason = "encode"       // the record could not be made
	ReasonOther        Reason = "other"
)

// Reasons lists every [Reason].
func Reasons() []Reason {
	return []Reason{
		ReasonUnreachable, ReasonTimeout, ReasonCancelled, ReasonUnauthorized, ReasonNotFound, ReasonThrottled,
		ReasonUnavailable, ReasonTooLarge, ReasonRejected, ReasonEncode, ReasonOther,
	}
}

// MaxRetryAfter is the longest delay that a peer may request. A longer delay is cut to this. A peer that requests more is
// nearly always wrong, and would stop a pipeline for no visible reason.
const MaxRetryAfter = 10 * time.Minute

// Error is a classified failure of a record or of a whole call. Its text never holds a credential.
type Error struct {
	Err    error
	Reason Reason
	// Permanent is set if this record could never be taken, in any state of the peer. What would fail any
	// record (connection refused, unauthorized, no such topic, 5xx) is not permanent.
	Permanent bool
	// RetryAfter is the delay the peer requested, [MaxRetryAfter] at most; 0 if it did not.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Permanent marks err as final for its record.
func Permanent(reason Reason, err error) error {
	return &Error{Err: err, Reason: reason, Permanent: true}
}

// Transient marks err as one that may pass.
func Transient(reason Reason, err error) error {
	return &Error{Err: err, Reason: reason}
}

// Classify returns err as an *[Error]. One that no sink classified is transient; its reason is worked out from
// the standard library's error types. Classify(nil) is nil.
func Classify(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error // on the heap
	switch {
	case !errors.As(err, &e):
		return &Error{Err: err, Reason: reasonOf(err)}
	case e == err: //nolint:errorlint // identity: else keep the outer text, the inner class
		return e
	default:
		return &Error{Err: err, Reason: e.Reason, Permanent: e.Permanent, RetryAfter: e.RetryAfter}
	}
}

func reasonOf(err error) Reason {
	var netErr net.Error
	var opErr *net.OpError
	var dnsErr *net.DNSError
	var fileErr *FileError
	switch {
	case errors.As(err, &fileErr): // nearly always credentials
		return ReasonUnauthorized
	case errors.Is(err, context.Canceled):
		return ReasonCancelled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return ReasonTimeout
	case errors.As(err, &opErr) && opErr.Op == "remote error":
		// An alert of TLS (crypto/tls has no type for it): in nearly all cases here, the peer refuses the
		// client certificate.
		return ReasonUnauthorized
	case errors.As(err, &opErr), errors.As(err, &dnsErr), isCertificate(err), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNREFUSED):
		return ReasonUnreachable
	default:
		return ReasonOther
	}
}

// isCertificate reports whether the peer's certificate was refused.
func isCertificate(err error) bool {
	var certErr *tls.CertificateVerificationError
	return errors.As(err, &certErr)
}

// Advise appends advice to a connection error: login if the peer refuses the credentials, address if it cannot be reached.
func Advise(err error, login, address string) error {
	class := Classify(err)
	advice := ""
	var fileErr *FileError
	switch {
	case errors.As(err, &fileErr): // names the file and the fault
	case isCertificate(err):
		advice = "check tls.caFile and tls.serverName"
	case class.Reason == ReasonUnauthorized:
		advice = login
	case class.Reason == ReasonUnreachable, class.Reason == ReasonTimeout:
		advice = address
	}
	if advice == "" {
		return class
	}
	return Transient(class.Reason, fmt.Errorf("%w: %s", err, advice))
}

// BatchError reports a batch that was not acknowledged as a whole: Errs[i] belongs to record i, nil means
// acknowledged.
type BatchError struct {
	Errs []error
}

func (e *BatchError) Error() string {
	failed := e.Unwrap()
	if len(failed) == 0 {
		return "no record failed"
	}
	return fmt.Sprintf("%d of %d records failed, first: %v", len(failed), len(e.Errs), failed[0])
}

// Unwrap gives errors.Is and errors.As access to each record's error.
func (e *BatchError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.Errs), func(err error) bool { return err == nil })
}

// Result returns what Deliver returns for the errors of the records of its batch: nil if all of them are.
func Result(errs []error) error {
	switch {
	case !slices.ContainsFunc(errs, func(err error) bool { return err != nil }):
		return nil
	case len(errs) == 1:
		return errs[0]
	default:
		return &BatchError{Errs: errs}
	}
}

// PerRecord spreads the result of a Deliver call over the n records of its batch. A *BatchError of the wrong
// length is a defect of the sink; then nothing counts as acknowledged.
func PerRecord(err error, n int) []error {
	var batch *BatchError
	if errors.As(err, &batch) {
		if len(batch.Errs) == n {
			return batch.Errs
		}
		err = fmt.Errorf("sink reported %d results for %d records", len(batch.Errs), n)
	}
	return slices.Repeat([]error{err}, n)
}
