package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// Sink sends records to one URL.
type Sink struct {
	config *Config
	target *url.URL
	env    sinks.Env
	client *http.Client
	conns  *conns
	creds  *credentials
	now    func() time.Time
}

var _ sinks.Sink = (*Sink)(nil)

// Open implements [sinks.Config]. It fails if a file that the configuration names cannot be read.
func (c *Config) Open(_ context.Context, env sinks.Env) (sinks.Sink, error) {
	target, fault := parseURL(c.URL)
	if fault != "" {
		return nil, fmt.Errorf("url: %s", fault)
	}
	known := &conns{}
	transport, err := c.transport(target, known)
	if err != nil {
		return nil, err
	}
	creds := newCredentials(c)
	if _, err := creds.read(); err != nil {
		return nil, err
	}
	return &Sink{
		config: c, target: target, env: env, conns: known, creds: creds, now: time.Now,
		client: &http.Client{
			Transport: transport,
			// A redirected POST may lose its body or its method, and carry credentials elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Deliver implements [sinks.Sink].
func (s *Sink) Deliver(ctx context.Context, batch []sinks.Record) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	d := delivery{sink: s, batch: batch, errs: make([]error, len(batch)), failed: map[string]bool{}}
	for start := 0; start < len(batch); {
		end := s.together(batch, start)
		d.send(ctx, start, end)
		start = end
	}
	switch {
	case len(d.failed) == 0:
		return nil
	case len(batch) == 1:
		return d.errs[0]
	default:
		return &sinks.BatchError{Errs: d.errs}
	}
}

// together returns the end of the records that can share a request with the one at start.
func (s *Sink) together(batch []sinks.Record, start int) int {
	end := start + 1
	if s.array(&batch[start]) {
		for end < len(batch) && batch[end].BatchContentType == batch[start].BatchContentType {
			end++
		}
	}
	return end
}

// array reports whether r is sent as an element of an array, even if it is the only one.
func (s *Sink) array(r *sinks.Record) bool {
	return s.config.Batch.MaxRecords > 1 && r.BatchContentType != ""
}

// Close implements [sinks.Sink].
func (s *Sink) Close(context.Context) error {
	s.client.CloseIdleConnections()
	s.conns.close()
	return nil
}

// errHeld is what a record gets that was not sent, because an earlier one of its key was refused.
var errHeld = sinks.Transient(sinks.ReasonOther, errors.New("held back behind an earlier record of the same object"))

// delivery is one Deliver call under way.
type delivery struct {
	sink   *Sink
	batch  []sinks.Record
	errs   []error
	failed map[string]bool // keys of which a record failed
	stop   error           // a failure that would meet any record; nothing more is sent
}

// send sends the records from start to end in one request. If the receiver refuses them for good, or as too many bytes,
// it means some of them, so they are sent again in halves until the offending ones are found.
func (d *delivery) send(ctx context.Context, start, end int) {
	indices := make([]int, 0, end-start)
	for i := start; i < end; i++ {
		switch key := d.batch[i].Key; {
		case d.stop != nil:
			d.fail(i, d.stop)
		case len(d.failed) > 0 && d.failed[key]:
			d.fail(i, errHeld)
		default:
			indices = append(indices, i)
		}
	}
	if len(indices) == 0 {
		return
	}
	records := make([]*sinks.Record, len(indices))
	for n, i := range indices {
		records[n] = &d.batch[i]
	}
	divide, err := d.sink.post(ctx, records)
	switch {
	case err == nil:
	case divide && len(indices) > 1:
		middle := indices[len(indices)/2]
		d.send(ctx, start, middle)
		d.send(ctx, middle, end)
	default:
		for _, i := range indices {
			d.fail(i, err)
		}
		if !sinks.Classify(err).Permanent {
			d.stop = err
		}
	}
}

func (d *delivery) fail(i int, err error) {
	d.errs[i] = err
	d.failed[d.batch[i].Key] = true
}

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker] by an OPTIONS request with the sink's headers and credentials, without a body and
// without a signature. That shows whether the receiver can be reached, TLS, and credentials that it looks at before the
// method. A receiver need not know OPTIONS: 405, 501 and the like say only that somebody is there.
func (s *Sink) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	creds, err := s.creds.read()
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

// advice says what to do about an answer; nothing if it is none that a delivery would have to fear.
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
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // whoever it is; nothing is sent
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
