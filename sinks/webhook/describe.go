package webhook

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer]. Path and query of the URL, and the values of configured headers, may be
// credentials; they are not shown.
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	target, fault := parseURL(c.URL)
	if fault != "" {
		return sinks.Destination{Place: "no URL", Err: errors.New("url: " + fault)}
	}
	d := sinks.Destination{Place: c.Method + " " + origin(target)}
	if strings.Trim(target.Path, "/") != "" || target.RawQuery != "" {
		d.Place += "/" + sinks.Undisclosed
	}
	plain := *c
	plain.Compression = compressionNone // the body is to be read
	s := &Sink{config: &plain, target: target, now: func() time.Time { return time.Time{} }}
	// Without the credentials, which are in files.
	req, err := s.request(context.Background(), []*sinks.Record{r}, &secrets{})
	if err != nil {
		d.Err = err
		return d
	}
	if d.Body, err = io.ReadAll(req.Body); err != nil {
		d.Err = err
		return d
	}
	for name := range c.Headers {
		req.Header.Set(name, sinks.Undisclosed)
	}
	req.Header.Set(headerTimestamp, sinks.Undisclosed)
	if c.Auth != nil {
		req.Header.Set("Authorization", sinks.Undisclosed)
	}
	if c.Signature != nil {
		req.Header.Set(headerSignature, sinks.Undisclosed)
	}
	if c.Compression != compressionNone {
		req.Header.Set("Content-Encoding", c.Compression)
	}
	req.Header.Del("User-Agent")
	req.Header.Del("Expect")
	headers := map[string]string{}
	for name := range req.Header {
		headers[strings.ToLower(name)] = req.Header.Get(name)
	}
	d.Headers = sinks.SortedHeaders(headers)
	return d
}
