package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/kubeferry/kubeferry/sinks"
)

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker] by an OPTIONS request with the sink's headers and credentials, without a body and
// without a signature. That shows whether the receiver can be reached, TLS, and credentials that it looks at before the
// method. A receiver need not support OPTIONS: 405, 501 and the like show only that it is there.
func (s *Sink) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	creds, err := s.credentials(ctx)
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
	advice := ""
	reason := reasonOf(resp.StatusCode)
	switch {
	case resp.StatusCode == http.StatusNotImplemented:
	case reason == sinks.ReasonUnauthorized:
		advice = "check auth and headers, and that they may be used at this url"
	case reason == sinks.ReasonNotFound:
		advice = "check url (some receivers answer so to every method but their own)"
	case reason == sinks.ReasonThrottled, reason == sinks.ReasonUnavailable:
		advice = "try again, or ask who runs it"
	}
	if advice == "" {
		return nil
	}
	err = s.refusal(resp, readBody(ctx, resp, end, maxRead), nil, creds)
	return sinks.Transient(reason, fmt.Errorf("OPTIONS: %w: %s", err, advice))
}
