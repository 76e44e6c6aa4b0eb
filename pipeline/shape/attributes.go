package shape

import (
	"strconv"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

const (
	applicationJSON = "application/json"
	cloudEvent      = "application/cloudevents+json"
	cloudEventBatch = "application/cloudevents-batch+json"
	contentTypeName = "datacontenttype"
)

// attribute is what a record holds beside its data. A flag is a Boolean that is true.
type attribute struct {
	name, value string
	flag        bool
}

// attributes are those of one record, in the order that the JSON has them.
type attributes struct {
	list [22]attribute // more than any record has
	n    int
}

// attributes returns what an entry's record holds beside the data, under the names of its format.
func (e *Encoder) attributes(record *sinks.Record, entry *delta.Entry, numbers sequences) (list attributes) {
	switch e.formatOf(entry) {
	case FormatJSON, FormatOTLP:
		list.add("id", record.ID)
		list.add("cluster", e.cluster)
		list.add("subject", record.Key)
		list.add("time", formatTime(entry.Observed()))
		list.add("pipeline", e.pipeline)
		list.add("sequence", numbers.own)
		if entry.Mark == nil { // the data of a mark have it
			list.add("snapshotSequence", numbers.snapshot)
		}
	case FormatRaw:
		list.add("kubeferry-id", sinks.PercentEncode(record.ID))
		list.add("kubeferry-type", string(entry.Delta.Type))
		list.add("kubeferry-cluster", sinks.PercentEncode(e.cluster))
		list.add("kubeferry-resource", sinks.PercentEncode(delta.ResourceName(entry.Delta.Resource)))
		// Names may hold what a header cannot, those of RBAC objects even line breaks. So values are percent-encoded as those
		// of CloudEvents in binary mode are, for every sink alike.
		list.add("kubeferry-subject", sinks.PercentEncode(record.Key))
		list.add("kubeferry-time", formatTime(entry.Observed()))
		list.add("kubeferry-pipeline", sinks.PercentEncode(e.pipeline))
		list.add("kubeferry-sequence", numbers.own)
		list.add("kubeferry-snapshot-sequence", numbers.snapshot)
		list.flag("kubeferry-snapshot", entry.Delta.Snapshot)
		list.flag("kubeferry-inferred", entry.Delta.Inferred)
		list.flag("kubeferry-final-state-unknown", entry.Delta.FinalStateUnknown)
		list.add("kubeferry-changed-by", managerNames(entry.Delta.ChangedBy()))
	default:
		e.event(&list, record, entry, numbers)
	}
	return list
}

// event adds the attributes of a CloudEvent.
func (e *Encoder) event(list *attributes, record *sinks.Record, entry *delta.Entry, numbers sequences) {
	eventType, subject := eventTypes[delta.Type(record.Fields.Type)], record.Key
	knative := e.profile == ProfileKnative && entry.Delta != nil // notices are the same in every profile
	if knative {
		eventType, subject = knativeTypes[entry.Delta.Type], knativeSubject(entry.Delta)
	}
	list.add("specversion", "1.0")
	list.add("id", record.ID)
	list.add("source", e.source)
	list.add("type", eventType)
	list.add("subject", subject)
	list.add("time", formatTime(entry.Observed()))
	list.add(contentTypeName, applicationJSON)
	list.add("partitionkey", record.PartitionKey())
	list.add("pipeline", e.pipeline)
	list.add("sequence", numbers.own)
	list.add("snapshotsequence", numbers.snapshot)
	if knative {
		list.add("apiversion", entry.Delta.Resource.GroupVersion().String())
	}
	if entry.Delta != nil { // routers match attributes only
		list.add("kind", record.Fields.Kind)
		list.add("name", record.Fields.Name)
		list.add("namespace", record.Fields.Namespace)
	}
	if knative {
		list.flag("snapshot", entry.Delta.Snapshot)
		list.flag("inferred", entry.Delta.Inferred)
		list.flag("finalstateunknown", entry.Delta.FinalStateUnknown)
	}
}

// managerNames lists the managers of [delta.Delta.ChangedBy] for a header, with commas between them.
func managerNames(changedBy []byte) string {
	var names []string
	for _, m := range delta.Managers(changedBy) {
		names = append(names, strings.ReplaceAll(sinks.PercentEncode(m.Manager), ",", "%2C"))
	}
	return strings.Join(names, ",")
}

// eventTypes are the types of our own profile, knativeTypes those of Knative's.
var (
	eventTypes = map[delta.Type]string{
		delta.Added:    "dev.kubeferry.resource.added",
		delta.Modified: "dev.kubeferry.resource.modified",
		delta.Deleted:  "dev.kubeferry.resource.deleted",
		delta.GapType:  "dev.kubeferry.gap",
		delta.MarkType: "dev.kubeferry.snapshot",
	}
	knativeTypes = map[delta.Type]string{
		delta.Added:    "dev.knative.apiserver.resource.add",
		delta.Modified: "dev.knative.apiserver.resource.update",
		delta.Deleted:  "dev.knative.apiserver.resource.delete",
	}
)

// knativeSubject is what ApiServerSource makes of an object: like a REST path, but for /apis before the core group too
// and a plural that is always the kind with an s.
func knativeSubject(d *delta.Delta) string {
	return "/apis/" + d.Resource.GroupVersion().String() + "/namespaces/" + d.Object.Namespace() + "/" +
		strings.ToLower(d.Object.Kind()) + "s/" + d.Object.Name()
}

// formatTime writes a time in UTC with six digits of the second's fraction.
func formatTime(t time.Time) string {
	var text [32]byte
	seconds := len(t.UTC().AppendFormat(text[:0], time.RFC3339)) - 1 // a layout that has a way of its own, three times as fast as that of others
	fraction := strconv.AppendInt(text[:seconds], int64(1_000_000+t.Nanosecond()/1000), 10)
	text[seconds] = '.'
	return string(append(fraction, 'Z'))
}

// add leaves out what is empty: an attribute of a CloudEvent never is.
func (a *attributes) add(name, value string) {
	if value != "" {
		a.list[a.n] = attribute{name: name, value: value}
		a.n++
	}
}

func (a *attributes) flag(name string, set bool) {
	if set {
		a.list[a.n] = attribute{name: name, value: "true", flag: true}
		a.n++
	}
}

// members appends the attributes as members of a JSON object, with a comma behind each.
func (a *attributes) members(b []byte) []byte {
	for _, attribute := range a.list[:a.n] {
		b = append(append(append(b, '"'), attribute.name...), '"', ':')
		if attribute.flag {
			b = append(b, attribute.value...)
		} else {
			b = appendString(b, attribute.value)
		}
		b = append(b, ',')
	}
	return b
}

// headers returns the attributes by name.
func (a *attributes) headers() map[string]string {
	headers := make(map[string]string, a.n)
	for _, attribute := range a.list[:a.n] {
		headers[attribute.name] = attribute.value
	}
	return headers
}
