package sinks

import (
	"encoding/json"
	"slices"
)

// Record is an encoded change, ready to be sent. Sinks must not modify it nor keep it after Deliver returns. As JSON it is
// part of a dead letter.
type Record struct {
	// ID names the change; it is the same each time the change is sent, in every pipeline.
	ID string `json:"id"`
	// DedupID is "<pipeline>/<ID>": what transports deduplicate by, so that two pipelines may share a stream. In a snapshot its
	// id follows.
	DedupID string `json:"-"`
	// Key is the REST path of the object (of the collection for a gap or a mark). Order is promised per key. It does not name the
	// cluster: [Record.PartitionKey] does.
	Key string `json:"key"`
	// ContentType of Body.
	ContentType string `json:"contentType"`
	// BatchContentType is the content type of a JSON array of such bodies; empty if they cannot be put in one.
	BatchContentType string `json:"batchContentType,omitempty"`
	// Headers of this record in the transport's own header section; names are lower case. May be nil.
	Headers map[string]string `json:"headers,omitempty"`
	// Attributes are those of a CloudEvent in binary mode, whose data is Body and whose datacontenttype is
	// ContentType: names without a prefix, values as they are. A sink writes them as the binding of its protocol specifies
	// (see [AttributeHeaders]); one without headers writes [Record.Structured]. Nil if the record is something else.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Fields are what topics, subjects and partition keys are made of.
	Fields Fields `json:"fields"`
	// Custom is set if an expression made Body, so that nothing may be added to it. Text is a JSON string in Body; see [Record.Content].
	Custom bool `json:"custom,omitempty"`
	// OTLP is set if Body is an ExportLogsServiceRequest, in JSON. It is sent in the encoding that ContentType names; see [Record.Content].
	OTLP bool `json:"otlp,omitempty"`
	// Body is one JSON value without line breaks.
	Body json.RawMessage `json:"body,omitempty"`
}

// IsText reports whether an expression made Body, and it is a JSON string. Then only the text in the string is sent.
func (r *Record) IsText() bool { return r.Custom && len(r.Body) > 0 && r.Body[0] == '"' }

// Content returns what is sent of the body: its JSON, or the text of a [Record.Custom] body that is one, or OTLP in protobuf.
func (r *Record) Content() []byte {
	if r.OTLP && r.ContentType == ContentTypeProtobuf {
		content, _ := OTLPProtobuf(r.Body) // which a format made
		return content
	}
	var text string
	if !r.IsText() || json.Unmarshal(r.Body, &text) != nil {
		return r.Body
	}
	return []byte(text)
}

// PartitionKey returns the name of the cluster, followed by Key. It is the key by which a topic is partitioned and compacted, so that
// clusters which share a topic never replace or delete each other's objects.
func (r *Record) PartitionKey() string { return r.Fields.Cluster + r.Key }

// Size returns what a record counts towards Batch.MaxBytes: the bytes of its body, key, headers and attributes.
func (r *Record) Size() int {
	n := len(r.Body) + len(r.Key)
	for k, v := range r.Headers {
		n += len(k) + len(v)
	}
	for k, v := range r.Attributes {
		n += len(AttributePrefix) + len(k) + len(v)
	}
	return n
}

// AppendLines appends each record in its structured form to b, and a line break behind each.
func AppendLines(b []byte, batch []Record) []byte {
	size := 0
	for i := range batch {
		size += batch[i].Size() + 1
	}
	b = slices.Grow(b, size)
	for i := range batch {
		b = append(append(b, batch[i].Structured()...), '\n')
	}
	return b
}

// Fields are the named values of a change that a [Template] can hold. Group is empty for the core group,
// Namespace for a cluster-scoped object.
type Fields struct {
	Cluster   string `json:"cluster,omitempty"`
	Group     string `json:"group,omitempty"`
	Version   string `json:"version,omitempty"`
	Resource  string `json:"resource,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
	// Type is ADDED, MODIFIED, DELETED, GAP or SNAPSHOT.
	Type string `json:"type,omitempty"`
}
