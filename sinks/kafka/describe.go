package kafka

import (
	"errors"
	"io"

	"github.com/segmentio/kafka-go"

	"github.com/kubeferry/kubeferry/sinks"
)

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer].
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	template, err := sinks.ParseTemplate(c.Topic)
	if err != nil {
		return sinks.Destination{Place: "topic " + c.Topic, Err: err}
	}
	topic, err := topicOf(template, r)
	if err != nil {
		return sinks.Destination{Place: "no topic", Err: err}
	}
	d := sinks.Destination{Place: "topic " + topic}
	how := encoding{key: c.Key, tombstones: c.Tombstones}
	if how.tombstone(r) {
		d.Place += ", and a tombstone behind it"
	}
	message, err := newReader(how, []*sinks.Record{r}).ReadRecord()
	if err != nil {
		d.Err = err
		return d
	}
	for _, header := range message.Headers {
		d.Headers = append(d.Headers, sinks.Header{Name: header.Key, Value: string(header.Value)})
	}
	key, keyErr := text(message.Key)
	body, bodyErr := text(message.Value)
	d.Key, d.Body, d.Err = string(key), body, errors.Join(keyErr, bodyErr)
	return d
}

// text is what kafka-go is to send; nil stays nil.
func text(bytes kafka.Bytes) ([]byte, error) {
	if bytes == nil {
		return nil, nil
	}
	return io.ReadAll(bytes)
}
