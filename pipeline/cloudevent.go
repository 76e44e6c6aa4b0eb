package pipeline

import (
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Profile is whose vocabulary the CloudEvents of a pipeline use.
type Profile string

// The profiles. The zero value is ProfileKubeferry too.
const (
	ProfileKubeferry Profile = "kubeferry"
	// ProfileKnative is that of Knative's ApiServerSource: its types, subjects and extensions, and the bare object as
	// data, so that its consumers work unchanged. What our own data has beside the object becomes extensions.
	ProfileKnative Profile = "knative"
)

const (
	cloudEvent      = "application/cloudevents+json"
	cloudEventBatch = "application/cloudevents-batch+json"
	contentTypeName = "datacontenttype"
)

// attribute of a CloudEvent. A flag is a Boolean that is true.
type attribute struct {
	name, value string
	flag        bool
}

// attributes are those of one event, in the order that the structured form has them.
type attributes struct {
	list [20]attribute // more than any event has
	n    int
}

// add leaves out what is empty: an attribute never is.
func (a *attributes) add(name, value string) {
	if value == "" {
		return
	}
	a.list[a.n] = attribute{name: name, value: value}
	a.n++
}

func (a *attributes) flag(name string, set bool) {
	if set {
		a.list[a.n] = attribute{name: name, value: "true", flag: true}
		a.n++
	}
}

// event adds the attributes of a delta's event.
func (e *encoder) event(ce *attributes, d *delta.Delta, record *sinks.Record) {
	eventType, subject := eventType(d.Type), record.Key
	if e.profile == ProfileKnative {
		eventType, subject = knativeType(d.Type), knativeSubject(d)
	}
	e.common(ce, record, eventType, subject, d.Observed)
	ce.add("sequence", e.sequence(d))
	if e.profile == ProfileKnative {
		ce.add("apiversion", d.Resource.GroupVersion().String())
		ce.add("kind", d.Object.Kind())
		ce.add("name", d.Object.Name())
		ce.add("namespace", d.Object.Namespace())
		ce.flag("snapshot", d.Snapshot)
		ce.flag("inferred", d.Inferred)
		ce.flag("finalstateunknown", d.FinalStateUnknown)
	}
}

// common adds the attributes that every event has.
func (e *encoder) common(ce *attributes, record *sinks.Record, eventType, subject string, observed time.Time) {
	ce.add("specversion", "1.0")
	ce.add("id", record.ID)
	ce.add("source", e.source)
	ce.add("type", eventType)
	ce.add("subject", subject)
	ce.add("time", formatTime(observed))
	ce.add(contentTypeName, applicationJSON)
	ce.add("partitionkey", record.Key)
}

// data appends the data of a delta's event.
func (e *encoder) data(b []byte, d *delta.Delta) []byte {
	if e.profile == ProfileKnative {
		return append(b, d.Object.JSON()...)
	}
	return append(appendData(append(b, '{'), d), '}')
}

// envelope begins an event in structured form, up to its data.
func (a *attributes) envelope(b []byte) []byte {
	b = append(b, '{')
	for _, attribute := range a.list[:a.n] {
		b = append(append(append(b, '"'), attribute.name...), '"', ':')
		if attribute.flag {
			b = append(b, attribute.value...)
		} else {
			b = appendString(b, attribute.value)
		}
		b = append(b, ',')
	}
	return append(b, `"data":`...)
}

// binary makes the record an event in binary mode. Such an event cannot share a request with others.
func (e *encoder) binary(record *sinks.Record, a *attributes, data []byte) {
	record.ContentType, record.Body = applicationJSON, data
	record.Attributes = make(map[string]string, a.n)
	for _, attribute := range a.list[:a.n] {
		if attribute.name != contentTypeName { // it is the record's content type
			record.Attributes[attribute.name] = attribute.value
		}
	}
}

func eventType(t delta.Type) string {
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

func knativeType(t delta.Type) string {
	switch t {
	case delta.Added:
		return "dev.knative.apiserver.resource.add"
	case delta.Modified:
		return "dev.knative.apiserver.resource.update"
	default:
		return "dev.knative.apiserver.resource.delete"
	}
}

// knativeSubject is what ApiServerSource makes of an object: like a REST path, but for /apis before the core group too
// and a plural that is always the kind with an s.
func knativeSubject(d *delta.Delta) string {
	return "/apis/" + d.Resource.GroupVersion().String() + "/namespaces/" + d.Object.Namespace() + "/" +
		strings.ToLower(d.Object.Kind()) + "s/" + d.Object.Name()
}
