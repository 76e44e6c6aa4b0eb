package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestClassify(t *testing.T) {
	for _, test := range []struct {
		err       error
		want      sinks.Reason
		permanent bool
	}{
		{nats.ErrMaxPayload, sinks.ReasonTooLarge, true},
		{&jetstream.APIError{Code: 400, ErrorCode: 10054}, sinks.ReasonTooLarge, true},
		{&jetstream.APIError{Code: 400, ErrorCode: 10097}, sinks.ReasonTooLarge, true},
		{nats.ErrBadSubject, sinks.ReasonEncode, true},
		{nats.ErrBadHeaderMsg, sinks.ReasonEncode, true},
		{jetstream.ErrNoStreamResponse, sinks.ReasonNotFound, false},
		{jetstream.ErrStreamNotFound, sinks.ReasonNotFound, false},
		{&jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum bytes exceeded"}, sinks.ReasonUnavailable, false},
		{&jetstream.APIError{Code: 400, ErrorCode: 10109, Description: "stream is sealed"}, sinks.ReasonRejected, false},
		{&jetstream.APIError{Code: 403}, sinks.ReasonUnauthorized, false},
		{&jetstream.APIError{Code: 429}, sinks.ReasonThrottled, false},
		{jetstream.ErrJetStreamNotEnabled, sinks.ReasonUnavailable, false},
		{jetstream.ErrAsyncPublishTimeout, sinks.ReasonTimeout, false},
		{jetstream.ErrTooManyStalledMsgs, sinks.ReasonUnavailable, false},
		{nats.ErrAuthorization, sinks.ReasonUnauthorized, false},
		{nats.ErrAuthExpired, sinks.ReasonUnauthorized, false},
		{nats.ErrPermissionViolation, sinks.ReasonUnauthorized, false},
		{&sinks.FileError{Key: "credsFile", Path: "creds", Err: os.ErrNotExist}, sinks.ReasonUnauthorized, false},
		{nats.ErrNoServers, sinks.ReasonUnreachable, false},
		{nats.ErrConnectionClosed, sinks.ReasonUnreachable, false},
		{nats.ErrDisconnected, sinks.ReasonUnreachable, false},
		{io.EOF, sinks.ReasonUnreachable, false},
		{nats.ErrTimeout, sinks.ReasonTimeout, false},
		{context.DeadlineExceeded, sinks.ReasonTimeout, false},
		{context.Canceled, sinks.ReasonCancelled, false},
		{sinks.Transient(sinks.ReasonUnreachable, nats.ErrAuthExpired), sinks.ReasonUnreachable, false},
		{errors.New("something"), sinks.ReasonOther, false},
	} {
		class := sinks.Classify(classify("k8s.x", fmt.Errorf("publish: %w", test.err)))
		if class.Reason != test.want || class.Permanent != test.permanent {
			t.Errorf("%v: got %s, permanent %t, want %s, %t", test.err, class.Reason, class.Permanent, test.want, test.permanent)
		}
	}
	if err := classify("k8s.x", nil); err != nil {
		t.Errorf("nil: got %v", err)
	}
	if err := classify("k8s.x", jetstream.ErrNoStreamResponse); !strings.Contains(err.Error(), `no stream takes subject "k8s.x"`) {
		t.Errorf("got %q", err)
	}
}

func TestConnectionError(t *testing.T) {
	for _, test := range []struct {
		err  error
		want sinks.Reason
	}{
		{nats.ErrNoServers, sinks.ReasonUnreachable},
		{os.ErrDeadlineExceeded, sinks.ReasonUnreachable},
		{nats.ErrAuthorization, sinks.ReasonUnauthorized},
		{nats.ErrMaxConnectionsExceeded, sinks.ReasonUnavailable},
		{&url.Error{Op: "parse", URL: "nats://u:s3cr3t@h", Err: errors.New("bad")}, sinks.ReasonUnreachable},
	} {
		class := sinks.Classify(connectionError("connect to NATS", test.err))
		if class.Reason != test.want || class.Permanent {
			t.Errorf("%v: got %s, want %s", test.err, class.Reason, test.want)
		}
		if strings.Contains(class.Error(), "s3cr3t") {
			t.Errorf("a password shows in %q", class)
		}
	}
}
