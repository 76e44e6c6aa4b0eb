package delta

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Type is what happened to an object.
type Type string

// The types of a delta, of a gap, and of a mark.
const (
	Added    Type = "ADDED"
	Modified Type = "MODIFIED"
	Deleted  Type = "DELETED"
	// GapType marks a [Gap]; no delta has it.
	GapType Type = "GAP"
	// MarkType marks a [Mark]; no delta has it.
	MarkType Type = "SNAPSHOT"
)

// Types lists the types of a delta.
func Types() []Type { return []Type{Added, Modified, Deleted} }

// Ref names an object by its place in the API: what order is promised for. It is comparable.
type Ref struct {
	Resource  schema.GroupVersionResource
	Namespace string // empty for a cluster-scoped object
	Name      string // empty for the collection
}

// Path is the object's REST path, as in /apis/apps/v1/namespaces/shop/deployments/web; without a name, the
// collection's.
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

// Delta is one observed change of one object. It is immutable once it has been handed to a pipeline, and may be
// shared by several.
type Delta struct {
	Type     Type
	Resource schema.GroupVersionResource
	// Watch names the watch that observed the change, as [Gap.Watch] does.
	Watch string
	// Object is the state after the change; for a DELETED the last one.
	Object *Object
	// Observed is when kubeferry first saw the change.
	Observed time.Time
	// Snapshot marks a delta of the state that exists, sent because a pipeline does not have it, or a snapshot was requested.
	Snapshot bool
	// SnapshotSequence is the [Mark.SnapshotSequence] of the snapshot of the delta's watch that runs in the pipeline; 0 if none runs. A source leaves it 0, and names the snapshot of each pipeline beside the delta.
	SnapshotSequence uint64
	// Inferred marks a delta that was found by comparing a state with the known set, because the change itself was missed.
	Inferred bool
	// FinalStateUnknown marks a DELETED whose last state was missed: its Object holds what was known before, at the
	// least the object's identity.
	FinalStateUnknown bool
	// Custom marks a delta whose Object has the JSON of the record's body, which an expression made of it.
	Custom bool
	// Bare marks a delta whose Object was cut down to its identity, since nothing else of it may leave.
	Bare bool
	// Sequence orders the deltas of one object: an offset and the resource version; 0 if it is not known. That of an inferred DELETED has
	// the resource version by which the object was gone: it comes behind all changes of the object, even those sent beyond the last
	// known one, and before those of a successor.
	Sequence uint64
	// Restored is how often the history of the resource had gone back, as after a restore of etcd: resource versions are given again.
	Restored int
	// Old is the previous version as of the observation; nil if there is none, if no pipeline of the watch needs it, or if it is
	// unknown.
	Old *Object
	// Difference is what a MODIFIED carries of the previous version; nil if the pipeline sends none.
	Difference *Difference
}

// Difference is what a record holds of the previous version of a MODIFIED, as its pipeline sends it.
type Difference struct {
	// Known is false if the previous version is unknown; then nothing below is set.
	Known bool
	// OldResourceVersion is the resource version of the previous version.
	OldResourceVersion string
	// OldObject is the previous version as JSON, or nil.
	OldObject []byte
	// Patch is a JSON Patch (RFC 6902) or a JSON Merge Patch (RFC 7386) that makes the new version of the old, or nil.
	Patch []byte
}

// Ref returns the object's place in the API.
func (d *Delta) Ref() Ref {
	return Ref{Resource: d.Resource, Namespace: d.Object.Namespace(), Name: d.Object.Name()}
}

// ID is <cluster>/<uid>/<resourceVersion>/<TYPE>: the same each time this change is sent, by any pipeline. After the history of the resource
// has gone back n times it begins with <cluster>+<n>.
func (d *Delta) ID(cluster string) string { return d.IDWith(cluster, "") }

// IDWith is ID and a suffix.
func (d *Delta) IDWith(cluster, suffix string) string {
	if d.Restored > 0 {
		cluster += "+" + strconv.Itoa(d.Restored)
	}
	return cluster + "/" + string(d.Object.UID()) + "/" + d.Object.ResourceVersion() + "/" + string(d.Type) + suffix
}

// FormatSequence returns a sequence as text that sorts as the number does; it is empty for 0.
func FormatSequence(sequence uint64) string {
	if sequence == 0 {
		return ""
	}
	var digits [20]byte
	n := len(strconv.AppendUint(digits[:0], sequence, 10))
	return "00000000000000000000"[n:] + string(digits[:n])
}

// Size is what the delta counts towards a backlog's bound in bytes: its JSON and a flat amount for the rest.
func (d *Delta) Size() int64 {
	size := int64(len(d.Object.JSON())+len(d.Object.fields.changedBy)) + overhead
	if d.Difference != nil {
		size += int64(len(d.Difference.OldObject) + len(d.Difference.Patch))
	}
	return size
}

// overhead is about what a Delta, its Object and their places in queues and maps take beside the JSON.
const overhead = 768

// Gap is a stretch of history that cannot be read. The net difference follows as inferred deltas.
type Gap struct {
	// Watch is a digest that names the watch: resource, scope and selectors of its source.
	Watch    string
	Resource schema.GroupVersionResource
	// Namespace of a watch of one namespace, else empty.
	Namespace string
	// From and To are sequences, as [FormatSequence] writes them: that of the position before the gap, and that of the list that closes it;
	// empty if unknown.
	From, To string
	Reason   GapReason
	Observed time.Time
}

// GapReason is why history is missing.
type GapReason string

// The reasons.
const (
	// GapRefused: the API server does not have the history any more (410).
	GapRefused GapReason = "refused"
	// GapLost: kubeferry cannot know what it sent last: it was killed, or a replica leads with an older copy or none. A snapshot follows.
	GapLost GapReason = "lost"
	// GapEdited: the file selects other objects now. A snapshot follows.
	GapEdited GapReason = "edited"
	// GapGone: the resource does not exist any more.
	GapGone GapReason = "gone"
	// GapCheck: a list has shown what no watch has reported.
	GapCheck GapReason = "check"
)

// ID is <cluster>/<watch digest>/<from>-<to>/GAP.
func (g *Gap) ID(cluster string) string {
	return cluster + "/" + g.Watch + "/" + g.From + "-" + g.To + "/" + string(GapType)
}

// Ref returns the collection that the gap is about.
func (g *Gap) Ref() Ref { return Ref{Resource: g.Resource, Namespace: g.Namespace} }

// Mark ends a snapshot of one watch in one pipeline: what the pipeline has sent of the watch before, and what does not name the snapshot or
// a later one, does not exist any more.
type Mark struct {
	// Watch names the watch, as [Gap.Watch] does.
	Watch    string
	Resource schema.GroupVersionResource
	// Namespace of a watch of one namespace, else empty.
	Namespace string
	// SnapshotSequence is what the records of the snapshot name: the sequence of the list that it reads, or a later one.
	SnapshotSequence uint64
	// Count is how many objects the snapshot had.
	Count uint64
	// Incomplete is set if the snapshot lacks objects that exist, so that nothing follows from it.
	Incomplete bool
	// Except are the REST paths of the objects whose records went to the dead letter, if they are few.
	Except   []string
	Observed time.Time
}

// ID is <cluster>/<watch digest>/<snapshot sequence>/SNAPSHOT.
func (m *Mark) ID(cluster string) string {
	return cluster + "/" + m.Watch + "/" + strconv.FormatUint(m.SnapshotSequence, 10) + "/" + string(MarkType)
}

// Ref returns the collection that the mark is about.
func (m *Mark) Ref() Ref { return Ref{Resource: m.Resource, Namespace: m.Namespace} }
