package sinks_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestClassify(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	slow := &net.DNSError{IsTimeout: true}
	throttled := &sinks.Error{Err: io.EOF, Reason: sinks.ReasonThrottled, RetryAfter: time.Second}
	tests := []struct {
		name string
		err  error
		want sinks.Error // without Err
	}{
		{"unknown", errors.New("something"), sinks.Error{Reason: sinks.ReasonOther}},
		{"cut off", fmt.Errorf("read: %w", io.EOF), sinks.Error{Reason: sinks.ReasonUnreachable}},
		{"file", &sinks.FileError{Key: "tokenFile", Path: "f", Err: io.EOF}, sinks.Error{Reason: sinks.ReasonUnauthorized}},
		{"cancelled", fmt.Errorf("send: %w", context.Canceled), sinks.Error{Reason: sinks.ReasonCancelled}},
		{"deadline", fmt.Errorf("send: %w", context.DeadlineExceeded), sinks.Error{Reason: sinks.ReasonTimeout}},
		{"refused", fmt.Errorf("send: %w", refused), sinks.Error{Reason: sinks.ReasonUnreachable}},
		{"another authority", fmt.Errorf("dial: %w", &tls.CertificateVerificationError{Err: io.EOF}), sinks.Error{Reason: sinks.ReasonUnreachable}},
		{"certificate refused", &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, sinks.Error{Reason: sinks.ReasonUnauthorized}},
		{"no such host", &net.DNSError{IsNotFound: true}, sinks.Error{Reason: sinks.ReasonUnreachable}},
		{"slow resolver", slow, sinks.Error{Reason: sinks.ReasonTimeout}},
		{"permanent", sinks.Permanent(sinks.ReasonTooLarge, io.EOF), sinks.Error{Reason: sinks.ReasonTooLarge, Permanent: true}},
		{"transient", sinks.Transient(sinks.ReasonNotFound, io.EOF), sinks.Error{Reason: sinks.ReasonNotFound}},
		{"retry after", throttled, sinks.Error{Reason: sinks.ReasonThrottled, RetryAfter: time.Second}},
		{"wrapped", fmt.Errorf("send: %w", throttled), sinks.Error{Reason: sinks.ReasonThrottled, RetryAfter: time.Second}},
		{
			"the outer class counts", sinks.Permanent(sinks.ReasonRejected, fmt.Errorf("x: %w", throttled)),
			sinks.Error{Reason: sinks.ReasonRejected, Permanent: true},
		},
		{"joined", errors.Join(io.EOF, throttled), sinks.Error{Reason: sinks.ReasonThrottled, RetryAfter: time.Second}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := sinks.Classify(test.err)
			if got.Reason != test.want.Reason || got.Permanent != test.want.Permanent || got.RetryAfter != test.want.RetryAfter {
				t.Errorf("got %+v, want %+v", *got, test.want)
			}
			if got.Error() != test.err.Error() {
				t.Errorf("got text %q, want %q", got, test.err)
			}
			if !errors.Is(got, errors.Unwrap(test.err)) && errors.Unwrap(test.err) != nil {
				t.Errorf("%v lost its cause", got)
			}
			if !slices.Contains(sinks.Reasons(), got.Reason) {
				t.Errorf("reason %q is not in Reasons", got.Reason)
			}
		})
	}
	if got := sinks.Classify(nil); got != nil {
		t.Errorf("nil: got %v", got)
	}
}

func TestBatchError(t *testing.T) {
	err := error(&sinks.BatchError{Errs: []error{nil, sinks.Permanent(sinks.ReasonRejected, io.EOF), nil, io.ErrShortWrite}})
	if got, want := err.Error(), "2 of 4 records failed, first: EOF"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(err, io.EOF) || !errors.Is(err, io.ErrShortWrite) {
		t.Error("a record's error cannot be found")
	}
}

func TestPerRecord(t *testing.T) {
	one := []error{nil, io.EOF}
	tests := []struct {
		name string
		err  error
		n    int
		want []bool // whether a record failed
	}{
		{"acknowledged", nil, 2, []bool{false, false}},
		{"as a whole", io.EOF, 2, []bool{true, true}},
		{"per record", &sinks.BatchError{Errs: one}, 2, []bool{false, true}},
		{"wrapped", fmt.Errorf("send: %w", &sinks.BatchError{Errs: one}), 2, []bool{false, true}},
		{"wrong length", &sinks.BatchError{Errs: one}, 3, []bool{true, true, true}},
		{"of none", nil, 0, []bool{}},
	}
	for _, test := range tests {
		got := []bool{}
		for _, err := range sinks.PerRecord(test.err, test.n) {
			got = append(got, err != nil)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
	// One permanent record must not make its neighbours permanent when the lengths disagree.
	wrong := &sinks.BatchError{Errs: []error{sinks.Permanent(sinks.ReasonRejected, io.EOF)}}
	for _, err := range sinks.PerRecord(wrong, 2) {
		if sinks.Classify(err).Permanent {
			t.Errorf("got a permanent %v for a defect of the sink", err)
		}
	}
}
