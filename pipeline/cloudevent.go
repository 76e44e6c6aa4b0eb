package pipeline

import (
	"strings"

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

// event adds the attributes of a CloudEvent.
func (e *encoder) event(list *attributes, record *sinks.Record, i *item) {
	eventType, subject := eventTypes[delta.Type(record.Fields.Type)], record.Key
	knative := e.profile == ProfileKnative && i.delta != nil // notices are the same in every profile
	if knative {
		eventType, subject = knativeTypes[i.delta.Type], knativeSubject(i.delta)
	}
	list.add("specversion", "1.0")
	list.add("id", record.ID)
	list.add("source", e.source)
	list.add("type", eventType)
	list.add("subject", subject)
	list.add("time", formatTime(i.observed))
	list.add(contentTypeName, applicationJSON)
	list.add("partitionkey", record.Key)
	list.add("sequence", e.sequence(i))
	if knative {
		list.add("apiversion", i.ref.Resource.GroupVersion().String())
	}
	if i.delta != nil { // routers match attributes only
		list.add("kind", record.Fields.Kind)
		list.add("name", record.Fields.Name)
		list.add("namespace", record.Fields.Namespace)
	}
	if knative {
		list.flag("snapshot", i.delta.Snapshot)
		list.flag("inferred", i.delta.Inferred)
		list.flag("finalstateunknown", i.delta.FinalStateUnknown)
	}
}

// eventData appends the data of a CloudEvent.
func (e *encoder) eventData(b []byte, i *item) []byte {
	if e.profile == ProfileKnative && i.delta != nil {
		return append(b, i.delta.Object.JSON()...)
	}
	return append(e.appendData(append(b, '{'), i), '}')
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
