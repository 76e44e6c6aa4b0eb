package sinktest

import (
	"net/url"
	"strings"
)

// DecodeAttributes reads the attributes of a CloudEvent in binary mode from headers of HTTP or NATS, which begin with
// ce- and are percent-encoded. Names must be in lower case. Nil if there are none.
func DecodeAttributes(headers map[string]string) map[string]string {
	var attributes map[string]string
	for name, value := range headers {
		name, ok := strings.CutPrefix(name, "ce-")
		if !ok {
			continue
		}
		if decoded, err := url.PathUnescape(value); err == nil {
			value = decoded
		}
		if attributes == nil {
			attributes = map[string]string{}
		}
		attributes[name] = value
	}
	return attributes
}
