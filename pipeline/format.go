package pipeline

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/kubeferry/kubeferry/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Format is how a delta becomes a record. Every format's body is one JSON value without line breaks.
type Format string

// The formats.
const (
	// FormatCloudEvents is a CloudEvents 1.0 event in structured JSON.
	FormatCloudEvents Format = "cloudevents"
	// FormatJSON is the event's data with id, cluster, subject and time beside it.
	FormatJSON Format = "json"
	// FormatRaw is the bare object; what else is known is in the headers.
	FormatRaw Format = "raw"
)

const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// encoder makes records. It copies the object's JSON into the envelope and decodes nothing.
type encoder struct {
	cluster, pipeline string
	// idCluster is what ids begin with: the cluster, with its epoch if there is one.
	idCluster string
	format    Format
}

func newEncoder(options Options) encoder {
	e := encoder{cluster: options.Cluster, idCluster: options.Cluster, pipeline: options.Name, format: options.Format}
	if options.Epoch > 0 {
		e.idCluster += "+" + strconv.Itoa(options.Epoch)
	}
	return e
}

func (e *encoder) encode(i *item) (sinks.Record, error) {
	if i.gap != nil {
		return e.gap(i.gap)
	}
	return e.delta(i.delta), nil
}

func (e *encoder) delta(d *delta.Delta) sinks.Record {
	object := d.Object
	record := sinks.Record{
		ID:  d.ID(e.idCluster),
		Key: d.Ref().Path(),
		Fields: sinks.Fields{
			Cluster: e.cluster,
			Group:   d.Resource.Group, Version: d.Resource.Version, Resource: d.Resource.Resource,
			Kind: object.Kind(), Namespace: object.Namespace(), Name: object.Name(), UID: string(object.UID()),
			Type: string(d.Type),
		},
	}
	record.DedupID = e.pipeline + "/" + record.ID
	switch e.format {
	case FormatRaw:
		record.Body = object.JSON()
		record.ContentType, record.BatchContentType = "application/json", "application/json"
		record.Headers = e.rawHeaders(d, &record)
	case FormatJSON:
		record.ContentType, record.BatchContentType = "application/json", "application/json"
		b := make([]byte, 0, len(object.JSON())+512)
		b = e.beside(b, record.ID, record.Key, d.Observed)
		b = appendData(b, d)
		record.Body = append(b, '}')
	default:
		record.ContentType, record.BatchContentType = cloudEvent, cloudEventBatch
		b := make([]byte, 0, len(object.JSON())+768)
		b = e.envelope(b, record.ID, cloudEventType(d.Type), record.Key, d.Observed)
		if sequence := sequence(object.ResourceVersion()); sequence != "" {
			b = append(append(append(b, `,"sequence":"`...), sequence...), '"')
		}
		b = append(b, `,"data":{`...)
		b = appendData(b, d)
		record.Body = append(b, '}', '}')
	}
	return record
}

const (
	cloudEvent      = "application/cloudevents+json"
	cloudEventBatch = "application/cloudevents-batch+json"
)

func cloudEventType(t delta.Type) string {
	switch t {
	case delta.Added:
		return "dev.kubeferry.resource.added"
	case delta.Modified:
		return "dev.kubeferry.resource.modified"
	case delta.Deleted:
		return "dev.kubeferry.resource.deleted"
	default:
		return "dev.kubeferry.gap"
	}
}

// envelope writes the attributes of a CloudEvent, without the closing brace.
func (e *encoder) envelope(b []byte, id, eventType, subject string, observed time.Time) []byte {
	b = append(b, `{"specversion":"1.0","id":`...)
	b = appendString(b, id)
	b = append(b, `,"source":`...)
	b = appendString(b, "/clusters/"+e.cluster)
	b = append(b, `,"type":"`...)
	b = append(b, eventType...)
	b = append(b, `","subject":`...)
	b = appendString(b, subject)
	b = append(b, `,"time":"`...)
	b = observed.UTC().AppendFormat(b, timeFormat)
	b = append(b, `","datacontenttype":"application/json","partitionkey":`...)
	return appendString(b, subject)
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
	b = observed.UTC().AppendFormat(b, timeFormat)
	return append(b, `",`...)
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

// rawHeaders carry what the bare object does not say.
func (e *encoder) rawHeaders(d *delta.Delta, record *sinks.Record) map[string]string {
	headers := map[string]string{
		"kubeferry-id":       record.ID,
		"kubeferry-type":     string(d.Type),
		"kubeferry-cluster":  e.cluster,
		"kubeferry-resource": delta.ResourceName(d.Resource),
		"kubeferry-subject":  record.Key,
		"kubeferry-time":     d.Observed.UTC().Format(timeFormat),
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

// gap encodes a gap record. The raw format has no object to send, and sends the json form.
func (e *encoder) gap(g *delta.Gap) (sinks.Record, error) {
	type resource struct {
		Group    string `json:"group"`
		Version  string `json:"version"`
		Resource string `json:"resource"`
	}
	type selectors struct {
		Label string `json:"label,omitempty"`
		Field string `json:"field,omitempty"`
	}
	data, err := json.Marshal(struct {
		Type      delta.Type `json:"type"`
		Resource  resource   `json:"resource"`
		Namespace string     `json:"namespace,omitempty"`
		Selectors selectors  `json:"selectors"`
		From      string     `json:"from"`
		To        string     `json:"to"`
		Reason    string     `json:"reason"`
		Unclean   bool       `json:"unclean"`
	}{
		delta.GapType,
		resource{g.Resource.Group, g.Resource.Version, g.Resource.Resource},
		g.Namespace,
		selectors{g.LabelSelector, g.FieldSelector},
		g.From, g.To, g.Reason, g.Unclean,
	})
	record := sinks.Record{
		ID:  g.ID(e.idCluster),
		Key: g.Ref().Path(),
		Fields: sinks.Fields{
			Cluster: e.cluster, Group: g.Resource.Group, Version: g.Resource.Version, Resource: g.Resource.Resource,
			Type: string(delta.GapType), // a gap has no kind, namespace or name: placeholders give "_"
		},
	}
	record.DedupID = e.pipeline + "/" + record.ID
	if e.format == FormatCloudEvents {
		record.ContentType, record.BatchContentType = cloudEvent, cloudEventBatch
		b := e.envelope(nil, record.ID, cloudEventType(delta.GapType), record.Key, g.Observed)
		b = append(append(b, `,"data":`...), data...)
		record.Body = append(b, '}')
		return record, err
	}
	record.ContentType, record.BatchContentType = "application/json", "application/json"
	b := e.beside(nil, record.ID, record.Key, g.Observed)
	if len(data) > 0 {
		b = append(b, data[1:]...) // its own opening brace is ours
	}
	record.Body = b
	return record, err
}

// sequence writes a resource version so that it sorts as text; a malformed one has no sequence.
func sequence(resourceVersion string) string {
	const width = 20 // digits of the largest uint64
	if _, err := strconv.ParseUint(resourceVersion, 10, 64); err != nil || len(resourceVersion) > width {
		return ""
	}
	return "00000000000000000000"[:width-len(resourceVersion)] + resourceVersion
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
