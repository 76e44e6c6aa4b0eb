package kafka

import (
	"maps"
	"slices"

	"github.com/segmentio/kafka-go"

	"github.com/kubeferry/kubeferry/sinks"
)

// Names of the headers that are not taken from [sinks.Record.Headers].
const (
	headerContentType = "content-type"
	// attributePrefix stands before the attributes of a CloudEvent in binary mode. Their values are UTF-8, not encoded.
	attributePrefix = "ce_"
	// headerID holds the record's DedupID: what consumers can deduplicate by. The format raw has a kubeferry-id.
	headerID = "kubeferry-dedup-id"
)

const (
	// maxRecord is the size in bytes over which a record is sent alone: max.request.size of Java's producer. The broker may take it, since
	// it may allow more, and compression may help.
	maxRecord = 1 << 20
	// maxRequest is socket.request.max.bytes, with room for the request around the record: over it a broker
	// closes the connection without an answer, which would look like a failure that may pass.
	maxRequest = 100<<20 - 4096

	// What the format adds: to a batch (KIP-98), to a record and to a header (lengths and deltas as varints).
	batchOverhead  = 61
	recordOverhead = 24
	headerOverhead = 6
)

// keyOf returns the key of r's message, and whether it has one.
func (c *Config) keyOf(r *sinks.Record) (string, bool) {
	switch c.Key {
	case keyUID:
		return r.Fields.UID, true
	case keyNamespace:
		return r.Fields.Namespace, true
	case keyNone:
		return "", false
	default:
		return r.PartitionKey(), true
	}
}

// tombstone reports whether a message without a value follows r's.
func (c *Config) tombstone(r *sinks.Record) bool {
	return c.Tombstones && r.Fields.Type == "DELETED"
}

// sizeOf returns an upper bound of the bytes that r's message and its tombstone take in a batch, uncompressed.
func (c *Config) sizeOf(r *sinks.Record) int {
	key, _ := c.keyOf(r)
	alone := len(key) + len(headerID) + len(r.DedupID) + recordOverhead + headerOverhead // as a tombstone is
	size := alone + r.Size() - len(r.Key) + (len(r.Headers)+len(r.Attributes))*headerOverhead
	if r.ContentType != "" {
		size += len(headerContentType) + len(r.ContentType) + headerOverhead
	}
	if c.tombstone(r) {
		size += alone
	}
	return size
}

// messages encodes the records of one request, each tombstone behind its record. They are copies: kafka-go writes them in a
// goroutine of its own, which may go on after a cancelled Produce has returned. Then the records must not be read any more.
func (c *Config) messages(records []*sinks.Record) []kafka.Record {
	messages := make([]kafka.Record, 0, len(records))
	for _, r := range records {
		messages = append(messages, c.message(r, false))
		if c.tombstone(r) {
			messages = append(messages, c.message(r, true))
		}
	}
	return messages
}

// message encodes a record. A tombstone has the key and the id, and no value.
func (c *Config) message(r *sinks.Record, tombstone bool) (m kafka.Record) {
	buf := make([]byte, 0, c.sizeOf(r)) // one allocation for all of it
	copied := func(text string) []byte {
		start := len(buf)
		buf = append(buf, text...)
		return buf[start:len(buf):len(buf)] // never nil, which is not empty to Kafka
	}
	m.Headers = make([]kafka.Header, 0, len(r.Headers)+len(r.Attributes)+2)
	header := func(name, value string) {
		m.Headers = append(m.Headers, kafka.Header{Key: name, Value: copied(value)})
	}
	if key, ok := c.keyOf(r); ok {
		m.Key = kafka.NewBytes(copied(key))
	}
	if tombstone {
		header(headerID, r.DedupID)
		return m
	}
	start := len(buf)
	buf = append(buf, r.Content()...)
	m.Value = kafka.NewBytes(buf[start:len(buf):len(buf)])
	if r.ContentType != "" {
		header(headerContentType, r.ContentType)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		if name != headerContentType || r.ContentType == "" {
			header(name, r.Headers[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Attributes)) {
		header(attributePrefix+name, r.Attributes[name])
	}
	header(headerID, r.DedupID)
	return m
}
