package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	maxRead     = 64 << 10    // bytes of a response; a longer one costs the connection, not memory
	maxReadTime = time.Second // and a slower one too
)

// reasonOf returns the reason for a status. The configuration decides whether it is permanent.
func reasonOf(status int) sinks.Reason {
	switch status {
	case http.StatusRequestEntityTooLarge:
		return sinks.ReasonTooLarge
	case http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return sinks.ReasonRejected
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return sinks.ReasonUnauthorized
	case http.StatusNotFound, http.StatusGone:
		return sinks.ReasonNotFound
	case http.StatusRequestTimeout:
		return sinks.ReasonTimeout
	case http.StatusTooManyRequests:
		return sinks.ReasonThrottled
	}
	switch {
	case status >= 500:
		return sinks.ReasonUnavailable
	case status >= 300 && status < 400:
		return sinks.ReasonNotFound
	default:
		return sinks.ReasonOther
	}
}

// readBody reads a response within bounds of bytes and time, so that its connection can be used again. The status decides, so a body that is
// late changes nothing. It may take a quarter of the time that the call has left, so that a refused array can still be sent in halves. After
// that, cancel ends the request. What follows a 101 is no body, and is not read.
func readBody(ctx context.Context, resp *http.Response, cancel context.CancelFunc, limit int64) []byte {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	bound := maxReadTime
	if limit > maxRead { // the body decides
		bound = time.Hour
	}
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline)/4)
	}
	timer := time.AfterFunc(bound, cancel)
	defer timer.Stop()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, limit))
	return body
}

// answer classifies a response: by its status, or by the expressions of the configuration. An expression that fails is not true.
func (s *Sink) answer(ctx context.Context, resp *http.Response, body []byte, sent []*sinks.Record, creds *secrets) (halve bool, err error) {
	if resp.StatusCode == http.StatusUnauthorized && creds.token != "" {
		s.tokens.Refused(creds.token)
	}
	taken := resp.StatusCode >= 200 && resp.StatusCode < 300
	if taken && sent[0].OTLP {
		if rejected, message := sinks.OTLPRejected(resp.Header.Get("Content-Type"), body); rejected > 0 {
			return true, sinks.Permanent(sinks.ReasonRejected, fmt.Errorf("%s rejected %d log records: %s", origin(s.target), rejected, creds.excerpt(message)))
		}
	}
	if taken && s.success == nil {
		return false, nil
	}
	var seen map[string]any
	if s.success != nil || s.permanent != nil {
		seen = answerOf(resp, body)
	}
	var failed error // of the expression
	if s.success != nil {
		var delivered bool
		if delivered, failed = s.success.holds(ctx, seen); delivered {
			return false, nil
		}
	}
	refusal := s.refusal(resp, body, sent, creds)
	switch {
	case failed != nil:
		refusal.Err = fmt.Errorf("%w (success: %s)", refusal.Err, creds.excerpt(failed.Error()))
	case taken:
		refusal.Err = fmt.Errorf("%w (success is false)", refusal.Err)
	}
	if taken { // the status says nothing
		refusal.Reason = sinks.ReasonUnavailable
	}
	if s.permanent != nil && !refusal.Permanent {
		if refusal.Permanent, _ = s.permanent.holds(ctx, seen); refusal.Permanent && refusal.Reason != sinks.ReasonTooLarge {
			refusal.Reason = sinks.ReasonRejected
		}
	}
	return refusal.Permanent || resp.StatusCode == http.StatusRequestEntityTooLarge, refusal
}

// refusal classifies a response by its status. It leaves out the text of one that repeats what was sent.
func (s *Sink) refusal(resp *http.Response, body []byte, sent []*sinks.Record, creds *secrets) *sinks.Error {
	message := fmt.Sprintf("%s answered %d %s", origin(s.target), resp.StatusCode, http.StatusText(resp.StatusCode))
	if to, err := resp.Location(); err == nil && resp.StatusCode >= 300 && resp.StatusCode < 400 {
		message += fmt.Sprintf(": redirects are not followed: set url to where it leads (at %s)", creds.excerpt(origin(to)))
	}
	if excerpt := creds.excerpt(string(body)); excerpt != "" && !repeats(excerpt, sent) {
		message += ": " + excerpt
	}
	return &sinks.Error{
		Err: errors.New(message), Reason: reasonOf(resp.StatusCode),
		Permanent:  slices.Contains(s.config.PermanentStatuses, resp.StatusCode),
		RetryAfter: s.retryAfter(resp.Header.Get("Retry-After")),
	}
}

// repeats reports whether a piece of text, long enough to be no accident, occurs in what was sent. It finds every piece of piece+step-1
// bytes, and looks for one in step of them only: a body may have megabytes.
func repeats(text string, sent []*sinks.Record) bool {
	const piece, step = 16, 4
	for at := 0; at+piece <= len(text); at += step {
		part := []byte(text[at : at+piece])
		if slices.ContainsFunc(sent, func(r *sinks.Record) bool { return bytes.Contains(r.Body, part) }) {
			return true
		}
	}
	return false
}

// noAnswer classifies the error of a request without a response.
func (s *Sink) noAnswer(ctx context.Context, err error, creds *secrets) error {
	if ctx.Err() != nil {
		return sinks.Classify(fmt.Errorf("no answer from %s: %w", origin(s.target), ctx.Err()))
	}
	reason := sinks.Classify(err).Reason
	if reason == sinks.ReasonOther {
		reason = sinks.ReasonUnreachable
	}
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err // its text holds the whole URL
	}
	// net/http quotes an answer that it cannot read, and that may be an echo.
	return sinks.Transient(reason, fmt.Errorf("send to %s: %s", origin(s.target), creds.excerpt(err.Error())))
}

// origin is the part of a URL that may be shown: many receivers put their token into the path or the query.
func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// retryAfter reads both forms of the header: seconds, of any number of digits, and an HTTP date. For anything else it
// returns 0.
func (s *Sink) retryAfter(value string) time.Duration {
	seconds, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) { // then seconds is the largest
		return time.Duration(min(seconds, uint64(sinks.MaxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(s.now()), 0), sinks.MaxRetryAfter)
}
