package nats

import (
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

// codeHeaderTooLarge is JSStreamHeaderExceedsMaximumErr of the server's errors.json; nats.go has no name for it.
const codeHeaderTooLarge jetstream.ErrorCode = 10097

// classify returns err as the sink reports it; subject is the record's.
func classify(subject string, err error) error {
	var classified *sinks.Error
	if err == nil || errors.As(err, &classified) {
		return err
	}
	var api *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload),
		errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || api.ErrorCode == codeHeaderTooLarge):
		return sinks.Permanent(sinks.ReasonTooLarge, fmt.Errorf("subject %q: %w", subject, err))
	case is(err, nats.ErrBadHeaderMsg, nats.ErrBadSubject):
		return sinks.Permanent(sinks.ReasonEncode, fmt.Errorf("subject %q: %w", subject, err))
	case is(err, jetstream.ErrNoStreamResponse, nats.ErrNoResponders):
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("no stream takes subject %q: %w", subject, err))
	default:
		return sinks.Transient(reasonOf(err), fmt.Errorf("subject %q: %w", subject, err))
	}
}

// connectionError classifies the failure of a connection: what is not about credentials or limits counts as
// unreachable.
func connectionError(what string, err error) error {
	var parse *url.Error
	if errors.As(err, &parse) { // quotes the URL, which may hold a password
		err = errors.New("a URL in urls cannot be used")
	}
	reason := reasonOf(err)
	if reason != sinks.ReasonUnauthorized && reason != sinks.ReasonUnavailable {
		reason = sinks.ReasonUnreachable
	}
	return sinks.Transient(reason, fmt.Errorf("%s: %w", what, err))
}

// transient classifies an error that would fail any record.
func transient(err error) error { return sinks.Transient(reasonOf(err), err) }

func reasonOf(err error) sinks.Reason {
	var classified *sinks.Error
	var api *jetstream.APIError
	switch {
	case errors.As(err, &classified):
		return classified.Reason
	case errors.As(err, &api):
		return reasonOfAPI(api.Code)
	case is(err, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation):
		return sinks.ReasonUnauthorized
	case is(err, jetstream.ErrStreamNotFound):
		return sinks.ReasonNotFound
	case is(err, jetstream.ErrAsyncPublishTimeout, nats.ErrTimeout):
		return sinks.ReasonTimeout
	case is(err, jetstream.ErrTooManyStalledMsgs, nats.ErrMaxConnectionsExceeded, nats.ErrMaxAccountConnectionsExceeded):
		return sinks.ReasonUnavailable
	case is(err, nats.ErrNoServers, nats.ErrConnectionClosed, nats.ErrDisconnected, nats.ErrStaleConnection,
		nats.ErrConnectionDraining, nats.ErrInvalidConnection, nats.ErrTLS, nats.ErrSecureConnWanted, nats.ErrNoInfoReceived):
		return sinks.ReasonUnreachable
	default:
		return sinks.Classify(err).Reason
	}
}

// reasonOfAPI goes by the HTTP-like code: the exact ones are many, and new versions add to them (errors.json of the
// server). A full stream is a 503 (JSStreamStoreFailed).
func reasonOfAPI(code int) sinks.Reason {
	switch {
	case code == 401 || code == 403:
		return sinks.ReasonUnauthorized
	case code == 404:
		return sinks.ReasonNotFound
	case code == 429:
		return sinks.ReasonThrottled
	case code >= 500:
		return sinks.ReasonUnavailable
	default:
		return sinks.ReasonRejected
	}
}

func is(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
