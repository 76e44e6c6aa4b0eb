package webhook

import (
	"errors"
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
	s := &Sink{config: c, target: target, now: time.Now}
	records := []*sinks.Record{r}
	header, err := s.header(records, &secrets{}) // without the credentials, which are in files
	if err != nil {
		d.Err = err
		return d
	}
	d.Body = s.body(records).content
	for name := range c.Headers {
		header.Set(name, sinks.Undisclosed)
	}
	header.Set(headerTimestamp, sinks.Undisclosed)
	if c.Auth != nil {
		header.Set("Authorization", sinks.Undisclosed)
	}
	if c.Signature != nil {
		header.Set(headerSignature, sinks.Undisclosed)
	}
	header.Del("User-Agent")
	headers := map[string]string{}
	for name := range header {
		headers[strings.ToLower(name)] = header.Get(name)
	}
	d.Headers = sinks.SortedHeaders(headers)
	return d
}
