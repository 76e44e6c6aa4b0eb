package kafka

import (
	"errors"
	"io"
	"maps"
	"slices"
	"sync"

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
	// maxRecord is the size over which a record travels alone: max.request.size of Java's producer. The broker decides,
	// since it may allow more, and compression may help.
	maxRecord = 1 << 20
	// maxRequest is socket.request.max.bytes, with room for the request around the record: over it a broker
	// closes the connection without an answer, which would look like a failure that may pass.
	maxRequest = 100<<20 - 4096

	// What the format adds: to a batch (KIP-98), to a record and to a header (lengths and deltas as varints).
	batchOverhead  = 61
	recordOverhead = 24
	headerOverhead = 6
)

// encoding is how records become messages.
type encoding struct {
	key        string
	tombstones bool
}

// keyOf returns the key of r's message, and whether it has one.
func (e encoding) keyOf(r *sinks.Record) (string, bool) {
	switch e.key {
	case keyUID:
		return r.Fields.UID, true
	case keyNamespace:
		return r.Fields.Namespace, true
	case keyNone:
		return "", false
	default:
		return r.Key, true
	}
}

// tombstone reports whether a message without a value follows r's.
func (e encoding) tombstone(r *sinks.Record) bool {
	return e.tombstones && r.Fields.Type == "DELETED"
}

// sizeOf returns an upper bound of the bytes that r's message and its tombstone take in a batch, uncompressed.
func (e encoding) sizeOf(r *sinks.Record) int {
	key, _ := e.keyOf(r)
	alone := len(key) + len(headerID) + len(r.DedupID) + recordOverhead + headerOverhead // as a tombstone is
	size := alone + r.Size() - len(r.Key) + (len(r.Headers)+len(r.Attributes))*headerOverhead
	if r.ContentType != "" {
		size += len(headerContentType) + len(r.ContentType) + headerOverhead
	}
	if e.tombstone(r) {
		size += alone
	}
	return size
}

var errStopped = errors.New("the call that these records belong to has ended")

// reader encodes the records of one request while kafka-go writes it. kafka-go does that in a goroutine of its own,
// which may run on after a cancelled Produce has returned, when the records must not be read any more. So each is
// copied under a lock, and stop ends it.
type reader struct {
	encoding

	mu      sync.Mutex // guards what follows
	stopped bool
	records []*sinks.Record
	next    int
	after   bool // the tombstone of records[next-1] is due

	record kafka.Record
	buf    []byte
	names  []string
}

func newReader(e encoding, records []*sinks.Record) *reader {
	return &reader{encoding: e, records: records}
}

// stop drops the records. Nothing reads them once stop has returned.
func (r *reader) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped, r.records = true, nil
}

// ReadRecord implements [kafka.RecordReader]: the record is valid until the next call.
func (r *reader) ReadRecord() (*kafka.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
		return nil, errStopped
	case r.after:
		r.after = false
		r.encode(r.records[r.next-1], true)
		return &r.record, nil
	case r.next == len(r.records):
		return nil, io.EOF
	}
	record := r.records[r.next]
	r.next++
	r.after = r.tombstone(record)
	r.encode(record, false)
	return &r.record, nil
}

// encode fills r.record. A tombstone has the key and the id, and no value.
func (r *reader) encode(record *sinks.Record, tombstone bool) {
	r.buf = slices.Grow(r.buf[:0], r.sizeOf(record))
	r.record = kafka.Record{Headers: r.record.Headers[:0]}
	if key, ok := r.keyOf(record); ok {
		r.record.Key = kafka.NewBytes(r.copy(key))
	}
	if tombstone {
		r.header(headerID, record.DedupID)
		return
	}
	start := len(r.buf)
	r.buf = append(r.buf, record.Body...)
	r.record.Value = kafka.NewBytes(r.buf[start:len(r.buf):len(r.buf)])

	if record.ContentType != "" {
		r.header(headerContentType, record.ContentType)
	}
	for _, name := range r.sorted(record.Headers) {
		if name != headerContentType || record.ContentType == "" {
			r.header(name, record.Headers[name])
		}
	}
	for _, name := range r.sorted(record.Attributes) {
		r.header(attributePrefix+name, record.Attributes[name])
	}
	r.header(headerID, record.DedupID)
}

// sorted returns the names of values in order; they are valid until the next call.
func (r *reader) sorted(values map[string]string) []string {
	r.names = slices.AppendSeq(r.names[:0], maps.Keys(values))
	slices.Sort(r.names)
	return r.names
}

func (r *reader) header(name, value string) {
	r.record.Headers = append(r.record.Headers, kafka.Header{Key: name, Value: r.copy(value)})
}

// copy returns text as bytes that are valid as long as r.record; never nil, which is not empty to Kafka.
func (r *reader) copy(text string) []byte {
	start := len(r.buf)
	r.buf = append(r.buf, text...)
	return r.buf[start:len(r.buf):len(r.buf)]
}
