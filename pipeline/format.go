package pipeline

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Format is how a delta becomes a record. Every format's body is one JSON value without line breaks.
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
)

const applicationJSON = "application/json"

// encoder makes records. It copies the object's JSON into the envelope and decodes nothing.
type encoder struct {
	cluster, pipeline string
	// source is the CloudEvents attribute.
	source string
	// idCluster is what ids begin with: the cluster, with its epoch if there is one.
	idCluster string
	// dedupCluster is the pipeline and idCluster.
	dedupCluster string
	// epoch is what sequences begin with: three digits, 000 until the cluster's history went back for the first time.
	epoch   string
	format  Format
	profile Profile
}

func newEncoder(options Options) encoder {
	e := encoder{
		cluster: options.Cluster, idCluster: options.Cluster, pipeline: options.Name, source: "/clusters/" + options.Cluster,
		format: options.Format, profile: options.Profile, epoch: fmt.Sprintf("%03d", options.Epoch),
	}
	if options.Epoch > 0 {
		e.idCluster += "+" + strconv.Itoa(options.Epoch)
	}
	e.dedupCluster = e.pipeline + "/" + e.idCluster
	return e
}

// encode makes the record of an item, in memory of its own.
func (e *encoder) encode(i *item) (sinks.Record, error) {
	record, _, err := e.encodeTo(nil, i)
	return record, err
}

// encodeTo makes the record of an item; what it writes for the body is appended to b, which it returns.
func (e *encoder) encodeTo(b []byte, i *item) (sinks.Record, []byte, error) {
	if i.gap != nil {
		record, err := e.gap(i.gap)
		return record, b, err
	}
	record, b := e.delta(b, i.delta)
	return record, b, nil
}

func (e *encoder) delta(b []byte, d *delta.Delta) (sinks.Record, []byte) {
	object := d.Object
	record := sinks.Record{
		DedupID: d.ID(e.dedupCluster),
		Key:     d.Ref().Path(),
		Fields: sinks.Fields{
			Cluster: e.cluster,
			Group:   d.Resource.Group, Version: d.Resource.Version, Resource: d.Resource.Resource,
			Kind: object.Kind(), Namespace: object.Namespace(), Name: object.Name(), UID: string(object.UID()),
			Type: string(d.Type),
		},
	}
	record.ID = record.DedupID[len(e.pipeline)+1:] // one string for both
	from := len(b)
	switch e.format {
	case FormatRaw:
		record.Body = object.JSON()
		record.ContentType, record.BatchContentType = applicationJSON, applicationJSON
		record.Headers = e.rawHeaders(d, &record)
		return record, b
	case FormatJSON:
		record.ContentType, record.BatchContentType = applicationJSON, applicationJSON
		b = e.beside(b, record.ID, record.Key, d.Observed)
		if sequence := e.sequence(d); sequence != "" {
			b = append(append(append(b, `"sequence":"`...), sequence...), `",`...)
		}
		b = append(appendData(b, d), '}')
	default:
		var ce attributes
		e.event(&ce, d, &record)
		if e.format == FormatCloudEventsBinary {
			b = e.data(b, d)
			e.binary(&record, &ce, b[from:])
		} else {
			record.ContentType, record.BatchContentType = cloudEvent, cloudEventBatch
			b = append(e.data(ce.envelope(b), d), '}')
		}
	}
	record.Body = b[from:len(b):len(b)]
	return record, b
}

// beside writes what the json format has beside the data, with a comma at the end.
func (e *encoder) beside(b []byte, id, subject string, observed time.Time) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, id)
	b = append(b, `,"cluster":`...)
	b = appendString(b, e.cluster)
	b = append(b, `,"subject":`...)
	b = appendString(b, subject)
	b = append(b, `,"time":"`...)
	b = appendTime(b, observed)
	return append(b, `",`...)
}

// sequence returns what orders the records of one subject as text: the epoch, and the resource version of a delta in
// seventeen digits. It is empty where the resource version is not a number, as some aggregated API servers have them.
func (e *encoder) sequence(d *delta.Delta) string {
	const digits = "00000000000000000"
	version := d.Object.ResourceVersion()
	if d.AsOf != 0 {
		version = strconv.FormatUint(d.AsOf, 10)
	}
	if _, err := strconv.ParseUint(version, 10, 64); err != nil || len(version) > len(digits) {
		return ""
	}
	return e.epoch + digits[len(version):] + version
}

// appendTime writes a time in UTC with six digits of the second's fraction. The time package is fast only at layouts of
// its own, and those leave zeros at the end out.
func appendTime(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(b, time.RFC3339)
	b[len(b)-1] = '.' // was Z
	micro := t.Nanosecond() / 1000
	for unit := 100_000; unit > 0; unit /= 10 {
		b = append(b, byte('0'+micro/unit%10))
	}
	return append(b, 'Z')
}

func formatTime(t time.Time) string {
	return string(appendTime(make([]byte, 0, len("2006-01-02T15:04:05.000000Z")), t))
}

// appendData writes the members of the data object.
func appendData(b []byte, d *delta.Delta) []byte {
	b = append(b, `"type":"`...)
	b = append(b, d.Type...)
	b = append(b, `","resource":{"group":`...)
	b = appendString(b, d.Resource.Group)
	b = append(b, `,"version":`...)
	b = appendString(b, d.Resource.Version)
	b = append(b, `,"resource":`...)
	b = appendString(b, d.Resource.Resource)
	b = append(b, `},"object":`...)
	b = append(b, d.Object.JSON()...)
	b = appendDifference(b, d.Difference)
	if d.Snapshot {
		b = append(b, `,"snapshot":true`...)
	}
	if d.Inferred {
		b = append(b, `,"inferred":true`...)
	}
	if d.FinalStateUnknown {
		b = append(b, `,"finalStateUnknown":true`...)
	}
	return b
}

// appendDifference writes what a record holds of the version before, or that it is unknown.
func appendDifference(b []byte, d *delta.Difference) []byte {
	switch {
	case d == nil:
		return b
	case !d.Known:
		return append(b, `,"oldObjectKnown":false`...)
	}
	if d.OldObject != nil {
		b = append(append(b, `,"oldObject":`...), d.OldObject...)
	}
	if d.Patch != nil {
		b = append(append(b, `,"patch":`...), d.Patch...)
	}
	return appendString(append(b, `,"oldResourceVersion":`...), d.OldResourceVersion)
}

// rawHeaders hold what the bare object does not. Names may hold what a header cannot (those of RBAC objects line
// breaks even), so values are percent-encoded as those of CloudEvents in binary mode are, for every sink alike.
func (e *encoder) rawHeaders(d *delta.Delta, record *sinks.Record) map[string]string {
	headers := map[string]string{
		"kubeferry-id":       sinks.PercentEncode(record.ID),
		"kubeferry-type":     string(d.Type),
		"kubeferry-cluster":  sinks.PercentEncode(e.cluster),
		"kubeferry-resource": sinks.PercentEncode(delta.ResourceName(d.Resource)),
		"kubeferry-subject":  sinks.PercentEncode(record.Key),
		"kubeferry-time":     formatTime(d.Observed),
	}
	if sequence := e.sequence(d); sequence != "" {
		headers["kubeferry-sequence"] = sequence
	}
	for name, set := range map[string]bool{
		"kubeferry-snapshot": d.Snapshot, "kubeferry-inferred": d.Inferred, "kubeferry-final-state-unknown": d.FinalStateUnknown,
	} {
		if set {
			headers[name] = "true"
		}
	}
	return headers
}

// appendString writes a JSON string. What goes in is nearly always plain ASCII.
func appendString(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(text) // of a string: it cannot fail
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, text...)
	return append(b, '"')
}
