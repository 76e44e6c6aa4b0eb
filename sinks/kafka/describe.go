package kafka

import "github.com/kubeferry/kubeferry/sinks"

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
	how := encoding{key: c.Key, tombstones: c.Tombstones}
	d := sinks.Destination{Place: "topic " + topic, Body: r.Content()}
	d.Key, _ = how.keyOf(r)
	if how.tombstone(r) {
		d.Place += ", and a tombstone behind it"
	}
	for _, header := range how.message(r, false).Headers {
		d.Headers = append(d.Headers, sinks.Header{Name: header.Key, Value: string(header.Value)})
	}
	return d
}
