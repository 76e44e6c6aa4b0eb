package nats

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	headerContentType = "Content-Type"
	// headerDataContentType is what Content-Type is to HTTP: here it is an attribute like the others.
	headerDataContentType = sinks.AttributePrefix + "datacontenttype"
	headerMsgID           = nats.MsgIdHdr // JetStream recognizes a record that is sent again by it
)

// call is one Deliver call. nats.go may be stuck in a write when the call has to return, and its goroutine must not touch
// the batch after that. So messages are copied out of the batch under a lock, and stop ends it.
type call struct {
	subject sinks.Template
	n       int

	mu    sync.Mutex // guards what follows
	batch []sinks.Record
	buf   []byte
}

// stop drops the batch. Nothing reads it once stop has returned.
func (c *call) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batch = nil
}

// message returns the message of record i. Its data is valid until the next call. An error is the record's own,
// unless the call was stopped because ctx has ended.
func (c *call) message(ctx context.Context, i int) (*nats.Msg, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.batch == nil {
		return nil, ctx.Err()
	}
	r := &c.batch[i]
	subject := c.subject.Expand(&r.Fields, tokenByte)
	if len(subject) > maxSubject {
		return nil, sinks.Permanent(sinks.ReasonEncode,
			fmt.Errorf("nats: subject %.100q… has %d bytes, more than %d", subject, len(subject), maxSubject))
	}
	c.buf = append(c.buf[:0], r.Body...)
	return &nats.Msg{Subject: subject, Header: headerOf(r), Data: c.buf}, nil
}

func headerOf(r *sinks.Record) nats.Header {
	n := len(r.Headers) + len(r.Attributes) + 3
	header := make(nats.Header, n)
	values := make([]string, 0, n) // one allocation instead of n
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for name, value := range r.Headers {
		if name != "content-type" || r.ContentType == "" { // names of headers are case-sensitive here
			set(name, value)
		}
	}
	if r.ContentType != "" {
		set(headerContentType, r.ContentType)
	}
	r.AttributeHeaders(set)
	if r.Attributes != nil && r.ContentType != "" {
		set(headerDataContentType, r.ContentType)
	}
	set(headerMsgID, r.DedupID)
	return header
}

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer]. It does not check the server's max_payload.
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	template, err := sinks.ParseTemplate(c.Subject)
	if err != nil {
		return sinks.Destination{Place: "subject " + c.Subject, Err: err}
	}
	one := &call{subject: template, batch: []sinks.Record{*r}}
	message, err := one.message(context.Background(), 0)
	if err != nil {
		return sinks.Destination{Place: "no subject", Err: err}
	}
	headers := map[string]string{}
	for name := range message.Header {
		headers[name] = message.Header.Get(name)
	}
	return sinks.Destination{Place: "subject " + message.Subject, Headers: sinks.SortedHeaders(headers), Body: message.Data}
}
