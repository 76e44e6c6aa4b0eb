package webhook

import (
	"context"
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
	end    context.CancelFunc // closes every connection
	hidden []string           // what of the configuration must not show in an error
	tokens *sinks.Tokens      // nil without auth.oauth2
	now    func() time.Time

	success, permanent *condition // nil without an expression
}

var _ sinks.Sink = (*Sink)(nil)

// Open implements [sinks.Config]. It fails if a file that the configuration names cannot be read.
func (c *Config) Open(ctx context.Context, env sinks.Env) (sinks.Sink, error) {
	target, fault := parseURL(c.URL)
	if fault != "" {
		return nil, fmt.Errorf("url: %s", fault)
	}
	success, err := newCondition(c.Success)
	if err != nil {
		return nil, err
	}
	permanent, err := newCondition(c.Permanent)
	if err != nil {
		return nil, err
	}
	if err := c.CheckFiles(); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	transport, err := c.transport(life, target)
	if err != nil {
		end()
		return nil, err
	}
	var tokens *sinks.Tokens
	if c.Auth != nil && c.Auth.OAuth2 != nil {
		tokens = c.Auth.OAuth2.Tokens(life, "auth.oauth2")
	}
	return &Sink{
		tokens: tokens, success: success, permanent: permanent,
		config: c, target: target, env: env, end: end, hidden: confidential(c, target), now: time.Now,
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
	errs, indices := make([]error, len(batch)), make([]int, len(batch))
	for i := range indices {
		indices[i] = i
	}
	split := sinks.Split{Batch: batch, Errs: errs, Fit: s.together, Request: s.post}
	split.Send(ctx, indices)
	return sinks.Result(errs)
}

// together returns how many of the first records can share a request.
func (s *Sink) together(records []*sinks.Record) int {
	n := 1
	if s.framed(records[0]) {
		for n < len(records) && records[n].BatchContentType == records[0].BatchContentType && records[n].OTLP == records[0].OTLP {
			n++
		}
	}
	return n
}

// framed reports whether r is sent as an element of an array or as a line, even if it is the only one.
func (s *Sink) framed(r *sinks.Record) bool {
	return s.config.framing() != framingNone && r.BatchContentType != ""
}

// Close implements [sinks.Sink]. net/http closes idle connections only, and a connection of HTTP/2 is not idle for a moment after its last
// response. So end closes all connections.
func (s *Sink) Close(context.Context) error {
	s.client.CloseIdleConnections()
	s.end()
	return nil
}
