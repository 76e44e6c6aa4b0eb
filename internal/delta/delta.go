package delta

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Type says what happened to an object.
type Type string

// The types of a delta, of a gap, and of a mark.
const (
	Added    Type = "ADDED"
	Modified Type = "MODIFIED"
	Deleted  Type = "DELETED"
	// GapType is the type in the record of a [Gap]. No delta has it.
	GapType Type = "GAP"
	// MarkType is the type in the record of a [Mark]. No delta has it.
	MarkType Type = "SNAPSHOT"
)

// Types lists the types of a delta.
func Types() []Type { return []Type{Added, Modified, Deleted} }

// Ref names an object by its resource, namespace and name. kubeferry promises order for the changes of one Ref. It is comparable.
type Ref struct {
	Resource  schema.GroupVersionResource
	Namespace string // empty for a cluster-scoped object
	Name      string // empty for the collection
}

// Path returns the REST path of the object, such as /apis/apps/v1/namespaces/shop/deployments/web. Without a name it is the path of the
// collection.
func (r Ref) Path() string {
	namespaces, slash := "", ""
	if r.Namespace != "" {
		namespaces = "/namespaces/"
	}
	if r.Name != "" {
		slash = "/"
	}
	if r.Resource.Group == "" { // each in one piece: it is made for every record
		return "/api/" + r.Resource.Version + namespaces + r.Namespace + "/" + r.Resource.Resource + slash + r.Name
	}
	return "/apis/" + r.Resource.Group + "/" + r.Resource.Version + namespaces + r.Namespace + "/" + r.Resource.Resource + slash + r.Name
}

// Delta is one observed change of one object. Once a pipeline has it, nobody may change it, because several pipelines share it.
type Delta struct {
	Type     Type
	Resource schema.GroupVersionResource
	// Watch is the digest of the watch that observed the change: see [Gap.Watch].
	Watch string
	// Object is the object after the change. In a DELETED it is the last version.
	Object *Object
	// Observed is when kubeferry first saw the change.
	Observed time.Time
	// Snapshot is set if the delta is part of a snapshot: the object existed before, and nothing happened to it.
	Snapshot bool
	// SnapshotSequence is the [Mark.SnapshotSequence] of the snapshot that runs in the pipeline for the delta's watch. It is 0 if none runs. A
	// source passes the snapshots of all pipelines beside the delta, and each pipeline gets a delta that has its own.
	SnapshotSequence uint64
	// Inferred is set if the change itself was missed. The source found its result when it compared a list with the known set.
	Inferred bool
	// FinalStateUnknown is set in a DELETED whose last version was missed, or must be hidden from the pipeline. Then Object is an older version,
	// or has the identity only.
	FinalStateUnknown bool
	// Custom is set if Object has the JSON of the record's body, which an expression of the pipeline made.
	Custom bool
	// Bare is set if Object was reduced to its identity, because nothing else of it may be sent.
	Bare bool
	// Sequence orders the deltas of one object. It is the sum of an offset and the resource version, or 0 if it is not known. An inferred
	// DELETED has the resource version of the list in which the object was missing. So it comes behind all changes of the object, also those
	// that were sent but are not in the known set, and before the changes of a successor with the same name.
	Sequence uint64
	// Restored counts how often the history of the resource has gone back, for example because etcd was restored. The API server then
	// assigns the same resource versions again.
	Restored int
	// Old is the previous version. It is nil if there is none, if it is unknown, or if no pipeline of the watch needs it.
	Old *Object
	// Difference is what the record of a MODIFIED has of the previous version. It is nil if the pipeline sends nothing of it.
	Difference *Difference
}

// Difference is what the record of a MODIFIED has of the previous version.
type Difference struct {
	// Known is false if the previous version is unknown. Then the other fields are empty.
	Known bool
	// OldResourceVersion is the resource version of the previous version.
	OldResourceVersion string
	// OldObject is the previous version as JSON. It is nil if the pipeline does not send it.
	OldObject []byte
	// Patch is a JSON Patch (RFC 6902) or a JSON Merge Patch (RFC 7386) that turns the previous version into the new one. It is nil if the
	// pipeline does not send it.
	Patch []byte
}

// Ref returns the object's place in the API.
func (d *Delta) Ref() Ref {
	return Ref{Resource: d.Resource, Namespace: d.Object.Namespace(), Name: d.Object.Name()}
}

// ID returns <cluster>/<uid>/<resourceVersion>/<TYPE>. It is the same each time that this change is sent, and in all pipelines. If
// [Delta.Restored] is n and not 0, the id begins with <cluster>+<n>.
func (d *Delta) ID(cluster string) string { return string(d.AppendID(nil, cluster)) }

// AppendID appends the ID to b.
func (d *Delta) AppendID(b []byte, cluster string) []byte {
	b = append(b, cluster...)
	if d.Restored > 0 {
		b = strconv.AppendInt(append(b, '+'), int64(d.Restored), 10)
	}
	b = append(append(b, '/'), d.Object.UID()...)
	b = append(append(b, '/'), d.Object.ResourceVersion()...)
	return append(append(b, '/'), d.Type...)
}

// FormatSequence returns a sequence as 20 digits, so that texts sort as the numbers do. It returns "" for 0.
func FormatSequence(sequence uint64) string {
	if sequence == 0 {
		return ""
	}
	return string(AppendSequence(nil, sequence))
}

// AppendSequence appends a sequence as 20 digits.
func AppendSequence(b []byte, sequence uint64) []byte {
	b = append(b, "00000000000000000000"...)
	for at := len(b) - 1; sequence > 0; at-- {
		b[at] = byte('0' + sequence%10)
		sequence /= 10
	}
	return b
}

// Size returns how many bytes the delta takes of a backlog's maxBytes: the length of its JSON, and a fixed number for the rest.
func (d *Delta) Size() int64 {
	size := int64(len(d.Object.JSON())+len(d.Object.fields.changedBy)) + overhead
	if d.Difference != nil {
		size += int64(len(d.Difference.OldObject) + len(d.Difference.Patch))
	}
	return size
}

// overhead is about what a Delta, its Object and their places in queues and maps take beside the JSON.
const overhead = 768

// Gap says that changes are missing, because the history cannot be read. The differences follow as inferred deltas.
type Gap struct {
	// Watch is a digest of the watch's resource, namespaces and selectors. It names the watch.
	Watch    string
	Resource schema.GroupVersionResource
	// Namespace is the namespace of a watch of one namespace. It is empty for a watch of several.
	Namespace string
	// From is the sequence of the position before the gap, and To that of the list that closes it, as [FormatSequence] writes them. Each is
	// empty if it is unknown.
	From, To string
	Reason   GapReason
	Observed time.Time
}

// GapReason says why changes are missing.
type GapReason string

// The reasons.
const (
	// GapRefused: the API server does not have the history any more, and answered 410.
	GapRefused GapReason = "refused"
	// GapLost: kubeferry does not know what it sent last, because it was killed, or because a replica leads that has an older copy of the
	// state, or none. A snapshot follows.
	GapLost GapReason = "lost"
	// GapEdited: the configuration selects other objects now. A snapshot follows.
	GapEdited GapReason = "edited"
	// GapGone: the resource does not exist any more.
	GapGone GapReason = "gone"
	// GapCheck: a list has shown a difference that no watch has reported.
	GapCheck GapReason = "check"
)

// ID returns <cluster>/<watch digest>/<from>-<to>/GAP.
func (g *Gap) ID(cluster string) string {
	return cluster + "/" + g.Watch + "/" + g.From + "-" + g.To + "/" + string(GapType)
}

// Ref returns the resource and namespace that the gap is about. It has no name.
func (g *Gap) Ref() Ref { return Ref{Resource: g.Resource, Namespace: g.Namespace} }

// Mark is at the end of a snapshot of one watch in one pipeline. If it is complete, it says which objects are gone: those whose records the
// pipeline has sent before, and of which no record names this snapshot or a later one.
type Mark struct {
	// Watch is the digest of the watch: see [Gap.Watch].
	Watch    string
	Resource schema.GroupVersionResource
	// Namespace is the namespace of a watch of one namespace. It is empty for a watch of several.
	Namespace string
	// SnapshotSequence names the snapshot, in the mark and in the records of the snapshot. It is the sequence of the list that the snapshot
	// reads, or a later one.
	SnapshotSequence uint64
	// Count is the number of objects in the snapshot.
	Count uint64
	// Incomplete is set if the snapshot lacks objects that exist. Then a consumer must ignore the mark.
	Incomplete bool
	// Except has the REST paths of the objects whose records became dead letters. If there are more
	// than a hundred, it has only some of them, and Incomplete is set.
	Except   []string
	Observed time.Time
}

// ID returns <cluster>/<watch digest>/<snapshot sequence>/SNAPSHOT.
func (m *Mark) ID(cluster string) string {
	return cluster + "/" + m.Watch + "/" + strconv.FormatUint(m.SnapshotSequence, 10) + "/" + string(MarkType)
}

// Ref returns the resource and namespace that the mark is about. It has no name.
func (m *Mark) Ref() Ref { return Ref{Resource: m.Resource, Namespace: m.Namespace} }
