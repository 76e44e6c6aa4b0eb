package kafka

import "github.com/kubeferry/kubeferry/sinks"

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer].
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	topic, err := topicOf(sinks.NewTemplate(c.Topic), r)
	if err != nil {
		return sinks.Destination{Place: "no topic", Err: err}
	}
	d := sinks.Destination{Place: "topic " + topic, Body: r.Content()}
	d.Key, _ = c.keyOf(r)
	if c.tombstone(r) {
		d.Place += ", and a tombstone behind it"
	}
	for _, header := range c.message(r, false).Headers {
		d.Headers = append(d.Headers, sinks.Header{Name: header.Key, Value: string(header.Value)})
	}
	return d
}
