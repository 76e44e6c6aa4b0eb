package shape

import (
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Format names the form of a record: what its body and its headers hold. Each body is one JSON value without line breaks.
type Format string

// The formats.
const (
	// FormatCloudEvents is a CloudEvents 1.0 event in structured JSON.
	FormatCloudEvents Format = "cloudevents"
	// FormatCloudEventsBinary is the same event with its attributes in headers, as in the protocol binding, and its
	// data as the body.
	FormatCloudEventsBinary Format = "cloudevents-binary"
	// FormatJSON is the event's data with id, cluster, subject and time beside it.
	FormatJSON Format = "json"
	// FormatRaw is the bare object; what else is known is in the headers.
	FormatRaw Format = "raw"
	// FormatOTLP is a request of OTLP with one log record. A webhook joins several.
	FormatOTLP Format = "otlp"
	// FormatCustom is what an expression makes of the change, or of a gap or mark; see [Body].
	FormatCustom Format = "custom"
)

// Profile names the vocabulary that the CloudEvents of a pipeline use.
type Profile string

// The profiles. The zero value is ProfileKubeferry too.
const (
	ProfileKubeferry Profile = "kubeferry"
	// ProfileKnative is that of Knative's ApiServerSource: its types, subjects and extensions, and the bare object as
	// data, so that its consumers work unchanged. What our own data has beside the object becomes extensions.
	ProfileKnative Profile = "knative"
)

// Encoder makes records. It copies the object's JSON into the envelope and decodes nothing.
type Encoder struct {
	cluster, pipeline string
	// source is the CloudEvents attribute.
	source string
	// idCluster is what ids begin with: the pipeline and the cluster.
	idCluster string
	format    Format
	profile   Profile
	body      *Body    // of FormatCustom
	encoding  Encoding // of FormatOTLP
}

// NewEncoder makes the encoder of a pipeline.
func NewEncoder(options Options) Encoder {
	return Encoder{
		cluster: options.Cluster, pipeline: options.Name, source: "/clusters/" + options.Cluster,
		idCluster: options.Name + "/" + options.Cluster, format: options.Format, profile: options.Profile, body: options.Body, encoding: options.Encoding,
	}
}

// Encode makes the record of an entry. What it writes for the body is appended to b, which it returns. It returns an error only if
// a gap or a mark has no body of [FormatCustom]: [ErrNoBody], or the error of the expression. The record then has the format json.
func (e *Encoder) Encode(b []byte, entry *delta.Entry) (record sinks.Record, grown []byte, err error) {
	record, numbers := e.record(entry)
	if entry.Delta != nil && entry.Delta.Custom {
		e.body.custom(&record, entry.Delta.Object.JSON())
		return record, b, nil
	}
	if e.format == FormatCustom && entry.Delta == nil {
		if err = e.notice(&record, entry); err == nil {
			return record, b, nil
		}
	}
	list := e.attributes(&record, entry, numbers)
	from := len(b)
	switch e.formatOf(entry) {
	case FormatRaw:
		record.ContentType, record.BatchContentType = applicationJSON, applicationJSON
		record.Headers, record.Body = list.headers(), entry.Delta.Object.JSON()
		return record, b, err
	case FormatJSON:
		record.ContentType, record.BatchContentType = applicationJSON, applicationJSON
		b = append(e.appendData(list.members(append(b, '{')), entry), '}')
	case FormatOTLP:
		record.OTLP, record.ContentType = true, applicationJSON
		if e.encoding == EncodingProtobuf {
			record.ContentType = sinks.ContentTypeProtobuf
		}
		record.BatchContentType = record.ContentType
		b = e.otlp(b, &record, &list, entry)
	case FormatCloudEventsBinary: // such an event cannot share a request with others
		record.ContentType, record.Attributes = applicationJSON, list.headers()
		delete(record.Attributes, contentTypeName) // it is the record's content type
		b = e.eventData(b, entry)
	default:
		record.ContentType, record.BatchContentType = cloudEvent, cloudEventBatch
		b = append(list.members(append(b, '{')), `"data":`...)
		b = append(e.eventData(b, entry), '}')
	}
	record.Body = b[from:len(b):len(b)]
	return record, b, err
}

// formatOf is the format of an entry's record. A notice, which is a gap or a mark, has no object to send, and is json instead of raw. Custom
// bodies are made before records wait: what waited already when the file was edited has none, and is json.
func (e *Encoder) formatOf(entry *delta.Entry) Format {
	if e.format == FormatCustom || e.format == FormatRaw && entry.Delta == nil {
		return FormatJSON
	}
	return e.format
}

// record makes a record without what depends on the format.
func (e *Encoder) record(entry *delta.Entry) (sinks.Record, sequences) {
	ref := entry.Ref()
	resource, numbers := ref.Resource, sequences{}
	record := sinks.Record{
		Key: ref.Path(),
		Fields: sinks.Fields{
			Cluster: e.cluster, Group: resource.Group, Version: resource.Version, Resource: resource.Resource,
		},
	}
	// A notice has no kind or name, and a gap no namespace: placeholders give "_".
	switch {
	case entry.Gap != nil:
		record.DedupID, record.Fields.Type = entry.Gap.ID(e.idCluster), string(delta.GapType)
	case entry.Mark != nil:
		record.DedupID, record.Fields.Type = entry.Mark.ID(e.idCluster), string(delta.MarkType)
		record.Fields.Namespace, numbers.snapshot = entry.Mark.Namespace, delta.FormatSequence(entry.Mark.SnapshotSequence)
	default:
		numbers = e.identify(&record, entry.Delta)
		object, fields := entry.Delta.Object, &record.Fields
		fields.Kind, fields.Namespace, fields.Name, fields.UID = object.Kind(), object.Namespace(), object.Name(), string(object.UID())
		fields.Type = string(entry.Delta.Type)
	}
	record.ID = record.DedupID[len(e.pipeline)+1 : len(record.DedupID)-numbers.suffix] // one string for both
	return record, numbers
}

// sequences are those of a record, as text.
type sequences struct {
	own      string // what orders the records of one subject; empty for a notice
	snapshot string // that of the snapshot which a delta or a mark names; empty if it names none
	suffix   int    // the length of what the transport id has beyond the id
}

// identify sets the transport id of a delta's record, and returns the sequences, which are parts of it. It has them beyond the id. So a
// transport takes what a consumer needs, though it has seen the id before: an object of another snapshot, or one that comes back or leaves once
// more in the same version.
func (e *Encoder) identify(record *sinks.Record, d *delta.Delta) (numbers sequences) {
	var room [256]byte
	id := d.AppendID(room[:0], e.idCluster)
	end := len(id)
	for _, sequence := range []uint64{d.Sequence, d.SnapshotSequence} {
		if sequence > 0 {
			id = delta.AppendSequence(append(id, '/'), sequence)
		}
	}
	record.DedupID = string(id)
	rest := record.DedupID[end:]
	numbers.suffix = len(rest)
	if d.Sequence > 0 {
		numbers.own, rest = rest[1:21], rest[21:]
	}
	if d.SnapshotSequence > 0 {
		numbers.snapshot = rest[1:]
	}
	return numbers
}
