package webhook

import (
	"context"
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
