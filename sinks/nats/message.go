package nats

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/kubeferry/kubeferry/sinks"
)

// encode makes the messages of a batch. They hold copies of the bodies: nats.go may be stuck in a write when Deliver has
// to return, and the batch must not be read after that.
func encode(subject sinks.Template, batch []sinks.Record) []delivery {
	size := 0
	for i := range batch {
		size += len(batch[i].Body)
	}
	bodies := make([]byte, 0, size)
	deliveries := make([]delivery, len(batch))
	for i := range batch {
		start := len(bodies)
		bodies = append(bodies, batch[i].Content()...)
		d := &deliveries[i]
		if d.message, d.err = message(subject, &batch[i]); d.err == nil {
			d.message.Data = bodies[start:]
		}
	}
	return deliveries
}

// message returns the message of a record; it shares the body.
func message(template sinks.Template, r *sinks.Record) (*nats.Msg, error) {
	subject := template.Expand(&r.Fields, tokenByte)
	if len(subject) > maxSubject {
		return nil, sinks.Permanent(sinks.ReasonEncode,
			fmt.Errorf("nats: subject %.100q… has %d bytes, more than %d", subject, len(subject), maxSubject))
	}
	return &nats.Msg{Subject: subject, Header: headerOf(r), Data: r.Content()}, nil
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
	r.AttributeHeaders(set)
	if r.ContentType != "" {
		set("Content-Type", r.ContentType)
		if r.Attributes != nil { // unlike in HTTP, it is an attribute like the others
			set(sinks.AttributePrefix+"datacontenttype", r.ContentType)
		}
	}
	set(nats.MsgIdHdr, r.DedupID)
	return header
}

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer]. It does not check the server's max_payload.
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	message, err := message(sinks.NewTemplate(c.Subject), r)
	if err != nil {
		return sinks.Destination{Place: "no subject", Err: err}
	}
	headers := map[string]string{}
	for name := range message.Header {
		headers[name] = message.Header.Get(name)
	}
	return sinks.Destination{Place: "subject " + message.Subject, Headers: sinks.SortedHeaders(headers), Body: message.Data}
}
