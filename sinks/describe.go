package sinks

import (
	"maps"
	"slices"
)

// Describer is an optional interface of a [Config]. `kubeferry explain` uses it.
type Describer interface {
	// Describe returns where a record would go, and in which form, as if it were the only one of its batch. It connects to
	// nothing and reads no file; its result holds no credential.
	Describe(r *Record) Destination
}

// Destination is where a record goes, and in which form.
type Destination struct {
	// Place in a few words: "topic k8s.apps.deployments".
	Place string
	// Key of the message; empty if the transport or the configuration has none.
	Key string
	// Headers as the transport writes them, by name. What is secret, or is made when the record is sent, is "…".
	Headers []Header
	// Body is one JSON value, before compression.
	Body []byte
	// Err is why the record could never be sent; what is above may then be missing.
	Err error
}

// Header is a header of a message or a request.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Undisclosed stands for a value that a [Destination] does not show.
const Undisclosed = "…"

// SortedHeaders makes the headers of a [Destination].
func SortedHeaders(values map[string]string) []Header {
	headers := make([]Header, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		headers = append(headers, Header{name, values[name]})
	}
	return headers
}
