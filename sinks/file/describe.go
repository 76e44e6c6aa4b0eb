package file

import "github.com/kubeferry/kubeferry/sinks"

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer].
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	return sinks.Destination{Place: "file " + c.Path, Body: r.Structured()}
}
