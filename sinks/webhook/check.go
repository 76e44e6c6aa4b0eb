package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/kubeferry/kubeferry/sinks"
)

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker] by an OPTIONS request with the sink's headers and credentials, without a body and
// without a signature. That shows whether the receiver can be reached, TLS, and credentials that it looks at before the
// method. A receiver need not support OPTIONS: 405, 501 and the like show only that it is there.
func (s *Sink) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	creds, err := s.config.readSecrets(s.hidden)
	if err != nil {
		return err
	}
	own, end := context.WithCancel(ctx)
	defer end()
	req, err := http.NewRequestWithContext(own, http.MethodOptions, s.target.String(), http.NoBody)
	if err != nil {
		return errors.New("the request cannot be made from url")
	}
	s.addHeaders(req.Header, creds)
	resp, err := s.client.Do(req)
	if err != nil {
		return s.noAnswer(ctx, err, creds)
	}
	defer resp.Body.Close()
	readBody(ctx, resp, end)
	advice := s.advice(resp)
	if resp.StatusCode == http.StatusBadRequest && s.target.Scheme == "http" && s.speaksTLS(ctx) {
		advice = "it speaks TLS: begin url with https"
	}
	if advice == "" {
		return nil
	}
	return &sinks.Error{
		Err:    fmt.Errorf("%s answered %d %s to OPTIONS: %s", origin(s.target), resp.StatusCode, http.StatusText(resp.StatusCode), advice),
		Reason: reasonOf(resp.StatusCode),
	}
}

// advice returns what to do about an answer; nothing if a delivery would not fail because of it.
func (s *Sink) advice(resp *http.Response) string {
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		if s.config.Auth == nil && len(s.config.Headers) == 0 {
			return "it wants credentials: set auth"
		}
		return "it refuses the credentials: check auth and headers, and that they may be used at this url"
	case code == http.StatusProxyAuthRequired:
		return "the proxy wants other credentials: check the environment's proxy URL"
	case code == http.StatusNotFound || code == http.StatusGone:
		return "there is nothing at this path: check url (some receivers answer so to every method but their own)"
	case code == http.StatusTooManyRequests || code >= 500 && code != http.StatusNotImplemented:
		return "it cannot take anything now: try again, or ask who runs it"
	case code >= 300 && code < 400:
		return "redirects are not followed: set url to where it leads" + at(resp.Location())
	default:
		return ""
	}
}

// speaksTLS finds out whether a server that answers 400 to plain HTTP means just that.
func (s *Sink) speaksTLS(ctx context.Context) bool {
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // nothing is sent
	conn, err := dialer.DialContext(ctx, "tcp", s.target.Host)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func at(to *url.URL, err error) string {
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (at %s)", origin(to))
}
