package sinks

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// AttributePrefix stands before an attribute's name in a header of HTTP and NATS. Kafka has a prefix of its own.
const AttributePrefix = "ce-"

// AttributeHeaders calls set with each of the record's attributes as a header of HTTP or NATS (CloudEvents 1.0 HTTP
// binding §3.1.3, NATS binding §3.1.3). Their order is free.
func (r *Record) AttributeHeaders(set func(name, value string)) {
	for name, value := range r.Attributes {
		set(AttributePrefix+name, PercentEncode(value))
	}
}

// PercentEncode replaces what the bindings of CloudEvents do not allow in a header's value: blanks, double quotes,
// percent signs and what lies outside of printable ASCII, byte by byte in UTF-8. What is left fits into a header of
// every transport.
func PercentEncode(value string) string {
	special := func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '%' }
	if strings.IndexFunc(value, special) < 0 { // nearly always
		return value
	}
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; special(rune(c)) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Structured returns the record as one complete JSON value: an event in binary mode takes its structured
// form, text stands for itself, anything else is its body. It is for sinks that have no place for headers.
func (r *Record) Structured() []byte {
	if r.Attributes == nil {
		return r.Content()
	}
	b := make([]byte, 0, len(r.Body)+512)
	b = append(b, '{')
	member := func(name, value string) {
		quoted, _ := json.Marshal(value) // of a string: it cannot fail
		b = append(append(b, '"'), name...)
		b = append(append(b, `":`...), quoted...)
		b = append(b, ',')
	}
	for _, name := range slices.Sorted(maps.Keys(r.Attributes)) {
		switch value := r.Attributes[name]; name {
		case "snapshot", "inferred", "finalstateunknown", "replayed": // of the type Boolean
			b = append(b, `"`+name+`":`+value+`,`...)
		default:
			member(name, value)
		}
	}
	if r.ContentType != "" {
		member("datacontenttype", r.ContentType)
	}
	b = append(append(b, `"data":`...), r.Body...)
	return append(b, '}')
}
