package kafka

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

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
	// maxRecord is the size over which a record travels alone: max.request.size of Java's producer.
	maxRecord = 1 << 20
	// maxRequest is socket.request.max.bytes, with room for the request around the record: over it a broker
	// closes the connection without an answer, which would look like a failure that may pass.
	maxRequest = 100<<20 - 4096

	// What the format adds: to a batch (KIP-98), to a record and to a header (lengths and deltas as varints).
	batchOverhead  = 61
	recordOverhead = 24
	headerOverhead = 6
)

// encoding says how records become messages.
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

// size of a message, uncompressed. Of the headers only content is counted, as a broker's quota does.
type size struct{ key, value, headers, names int }

func (s size) total() int { return s.key + s.value + s.headers }

// wire is an upper bound of what the message takes in a batch.
func (s size) wire() int { return s.total() + recordOverhead + s.names*headerOverhead }

// sizeOf returns the size of r's message without its tombstone.
func (e encoding) sizeOf(r *sinks.Record) size {
	key, _ := e.keyOf(r)
	s := size{key: len(key), value: len(r.Body), headers: len(headerID) + len(r.DedupID), names: 1}
	if r.ContentType != "" {
		s.headers += len(headerContentType) + len(r.ContentType)
		s.names++
	}
	for name, value := range r.Headers {
		if name != headerContentType || r.ContentType == "" {
			s.headers += len(name) + len(value)
			s.names++
		}
	}
	for name, value := range r.Attributes {
		s.headers += len(attributePrefix) + len(name) + len(value)
		s.names++
	}
	return s
}

// tombstoneSize returns what a tombstone adds to r, 0 if r has none.
func (e encoding) tombstoneSize(r *sinks.Record) int {
	if !e.tombstone(r) {
		return 0
	}
	key, _ := e.keyOf(r)
	return len(key) + len(headerID) + len(r.DedupID) + recordOverhead + headerOverhead
}

var errStopped = errors.New("the call that these records belong to has ended")

// reader encodes the records of one request while kafka-go writes it. kafka-go does that in a goroutine of its own,
// which may run on after a cancelled Produce has returned; the records are not ours any more by then. So each is
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

// stop makes the reader forget its records. Nothing reads them once it returned.
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

// encode fills r.record. A tombstone has no value; it says whose it is, and nothing else.
func (r *reader) encode(record *sinks.Record, tombstone bool) {
	r.buf = slices.Grow(r.buf[:0], r.sizeOf(record).total())
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
	r.names = r.names[:0]
	for name := range record.Headers {
		if name != headerContentType || record.ContentType == "" {
			r.names = append(r.names, name)
		}
	}
	slices.Sort(r.names)
	for _, name := range r.names {
		r.header(name, record.Headers[name])
	}
	r.names = r.names[:0]
	for name := range record.Attributes {
		r.names = append(r.names, name)
	}
	slices.Sort(r.names)
	for _, name := range r.names {
		r.header(attributePrefix+name, record.Attributes[name])
	}
	r.header(headerID, record.DedupID)
}

func (r *reader) header(name, value string) {
	r.record.Headers = append(r.record.Headers, kafka.Header{Key: name, Value: r.copy(value)})
}

// copy returns text as bytes that are valid as long as r.record; never nil, which Kafka would tell from empty.
func (r *reader) copy(text string) []byte {
	start := len(r.buf)
	r.buf = append(r.buf, text...)
	return r.buf[start:len(r.buf):len(r.buf)]
}

// topicOf returns the topic of r. A name that Kafka cannot have is the record's own fault.
func topicOf(template sinks.Template, r *sinks.Record) (string, error) {
	topic := template.Expand(&r.Fields, topicByte)
	if topic == "" || topic == "." || topic == ".." || len(topic) > maxTopic {
		return "", sinks.Permanent(sinks.ReasonEncode,
			fmt.Errorf("kafka: %.300q is no name for a topic (1 to %d characters)", topic, maxTopic))
	}
	return topic, nil
}

// ofTheRecord reports whether a broker refused a batch for the sake of a record in it. Everything else would fail
// any record, or none when it is sent again: InvalidTimestamp (the time is that of sending, so a clock or a slow
// network is at fault) and InvalidMessage (CORRUPT_MESSAGE, harmed on its way). The codes are in the protocol guide,
// https://kafka.apache.org/protocol#protocol_error_codes.
func (e encoding) ofTheRecord(err error) bool {
	var code kafka.Error
	if !errors.As(err, &code) {
		return false
	}
	switch code {
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		return true
	case kafka.InvalidRecord:
		return !e.keyless(err)
	default:
		return false
	}
}

// keyless reports whether records are refused for want of a key, as compacted topics do: that is the configuration's
// fault. A broker checks little else in a record (Kafka's LogValidator), so what it refuses under key: none counts as
// that; older ones answer InvalidMessage.
func (e encoding) keyless(err error) bool {
	var code kafka.Error
	return e.key == keyNone && errors.As(err, &code) && (code == kafka.InvalidRecord || code == kafka.InvalidMessage)
}

// staleMetadata reports whether err may be mended by knowing the cluster better.
func staleMetadata(err error) bool {
	switch reason := reasonOf(err); reason {
	case sinks.ReasonUnreachable, sinks.ReasonUnavailable, sinks.ReasonTimeout:
		return true
	default:
		return false
	}
}

// transient classifies an error that would fail any record.
func transient(err error) error {
	var classified *sinks.Error
	if err == nil || errors.As(err, &classified) {
		return err
	}
	return sinks.Transient(reasonOf(err), err)
}

func reasonOf(err error) sinks.Reason {
	var code kafka.Error
	var classified *sinks.Error
	switch {
	case errors.As(err, &classified):
		return classified.Reason
	case errors.As(err, &code):
		return reasonOfCode(code)
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition):
		return sinks.ReasonNotFound
	case errors.Is(err, protocol.ErrNoLeader):
		return sinks.ReasonUnavailable
	default:
		return sinks.Classify(err).Reason
	}
}

func reasonOfCode(code kafka.Error) sinks.Reason {
	switch code {
	case kafka.UnknownTopicOrPartition, kafka.UnknownTopicID:
		return sinks.ReasonNotFound
	case kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism, kafka.IllegalSASLState, kafka.SecurityDisabled,
		kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.BrokerAuthorizationFailed:
		return sinks.ReasonUnauthorized
	case kafka.ThrottlingQuotaExceeded:
		return sinks.ReasonThrottled
	case kafka.RequestTimedOut:
		return sinks.ReasonTimeout
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		return sinks.ReasonTooLarge
	case kafka.InvalidRecord, kafka.InvalidTimestamp, kafka.InvalidMessage, kafka.InvalidTopic, kafka.PolicyViolation,
		kafka.InvalidRequiredAcks, kafka.UnsupportedCompressionType, kafka.UnsupportedForMessageFormat,
		kafka.InvalidReplicationFactor, kafka.InvalidPartitionNumber, kafka.InvalidConfiguration, kafka.InvalidRequest:
		return sinks.ReasonRejected
	case kafka.UnsupportedVersion, kafka.Unknown:
		return sinks.ReasonOther
	default: // leaders, replicas, storage, coordinators
		return sinks.ReasonUnavailable
	}
}

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
