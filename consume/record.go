package consume

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Type is the type of a record. Later versions of kubeferry may have more types. A consumer ignores those that it does not know.
type Type string

// The types of records. The first three are changes.
const (
	Added    Type = "ADDED"
	Modified Type = "MODIFIED"
	Deleted  Type = "DELETED"
	// Gap is a gap record: kubeferry could not read a part of the history. The differences follow as changes with Inferred set.
	Gap Type = "GAP"
	// Mark is the record at the end of a snapshot.
	Mark Type = "SNAPSHOT"
)

// Resource is a resource of the Kubernetes API, such as apps, v1, deployments. Group is empty for the core group.
type Resource struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

// Key names an object. It has the cluster because objects of two clusters may have the same subject.
type Key struct{ Cluster, Subject string }

// Record is a change of an object, a gap record, or the mark of a snapshot. Fields that do not belong to its type are zero.
type Record struct {
	// ID is the same each time that the record is sent.
	ID string `json:"-"`
	// Cluster is the name of the cluster, as `cluster` of kubeferry's configuration has it.
	Cluster string `json:"-"`
	// Subject is the REST path of the object. In a gap record or a mark it is the path of the resource.
	Subject string `json:"-"`
	// Time is when kubeferry first saw the change.
	Time time.Time `json:"-"`
	// Pipeline is the name of the pipeline that sent the record.
	Pipeline string `json:"-"`
	// Sequence orders the changes of one subject: it has 20 digits, and is compared as text. It is empty in gap records and marks, and in
	// changes of which kubeferry knows no order.
	Sequence string `json:"-"`
	// SnapshotSequence names a snapshot. It is in the mark of the snapshot, and in each change of the resource that the pipeline sends while
	// the snapshot runs. It has 20 digits, and is compared as text.
	SnapshotSequence string `json:"snapshotSequence"`
	// Replayed is set if `kubeferry replay` sent the record. It was a dead letter, and may come behind later changes of its object.
	Replayed bool `json:"-"`

	Type     Type     `json:"type"`
	Resource Resource `json:"resource"`
	// Namespace is the namespace of the object, or empty if the object has none. In a gap record or a mark it is the namespace that the record
	// is about, or empty for all namespaces.
	Namespace string `json:"namespace"`

	// These fields belong to a change. Object is the object after the change. In a DELETED it is the last state that kubeferry knows.
	Object json.RawMessage `json:"object"`
	// OldObject is the previous version, and Patch is the difference to it. Each is nil unless the pipeline's `diff` selects it.
	OldObject json.RawMessage `json:"oldObject"`
	Patch     json.RawMessage `json:"patch"`
	// OldResourceVersion is the resource version of the previous version. It is empty without `diff`.
	OldResourceVersion string `json:"oldResourceVersion"`
	OldObjectUnknown   bool   `json:"-"`                 // the pipeline has `diff`, but kubeferry does not know the previous version
	Snapshot           bool   `json:"snapshot"`          // the change is part of a snapshot: the object existed before
	Inferred           bool   `json:"inferred"`          // kubeferry missed the change, and found its result by comparing
	FinalStateUnknown  bool   `json:"finalStateUnknown"` // in a DELETED: Object is not the last state, or only names the object

	// These fields belong to a gap record. The missing changes have sequences between From and To. From is empty if kubeferry does not know
	// what was before, and To is empty if the resource is gone. Reason says why changes are missing.
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"`

	// These fields belong to a mark. Count is the number of objects in the snapshot. If Complete is not set, ignore the mark. Except has the
	// subjects of objects that exist, but whose records in the snapshot became dead letters.
	Count    uint64   `json:"count"`
	Complete bool     `json:"complete"`
	Except   []string `json:"except"`
}

func (t Type) known() bool {
	return t == Added || t == Modified || t == Deleted || t == Gap || t == Mark
}

// IsChange reports whether the record is a change of one object.
func (r *Record) IsChange() bool { return r.Type == Added || r.Type == Modified || r.Type == Deleted }

// Key returns the key of the object of a change.
func (r *Record) Key() Key { return Key{r.Cluster, r.Subject} }

// UID returns the uid of the object, from the id of the record: transforms may have removed it from the object. It is empty unless the record
// is a change.
func (r *Record) UID() string { return r.idPart(3) }

// ResourceVersion returns the resource version of the object, from the id of the record. It is empty unless the record is a change.
func (r *Record) ResourceVersion() string { return r.idPart(2) }

// idPart counts from the end of the id, since a cluster's name may hold slashes.
func (r *Record) idPart(n int) string {
	parts := strings.Split(r.ID, "/")
	if !r.IsChange() || len(parts) < 4 {
		return ""
	}
	return parts[len(parts)-n]
}

// Above reports whether a change is higher than another one of the same object. The higher [Record.Sequence] decides. If both are equal, a
// DELETED is higher than the other types. If that is equal too, the higher [Record.SnapshotSequence] decides. The highest change of an object
// is its latest one, in whatever order the changes arrive.
func (r *Record) Above(other *Record) bool {
	deleted, otherDeleted := r.Type == Deleted, other.Type == Deleted
	switch {
	case r.Sequence != other.Sequence:
		return r.Sequence > other.Sequence
	case deleted != otherDeleted:
		return deleted
	default:
		return r.SnapshotSequence > other.SnapshotSequence
	}
}

// Decode returns the records of a message in the format cloudevents, cloudevents-binary or json. A message has one record, or several if it is
// a batch, or none if its body is empty, as in a tombstone of Kafka.
//
// header returns the value of a header of the message, or "" if there is no such header. Decode calls it with names in lower case, so
// http.Header.Get and nats.Header.Get fit. It may be nil if the message has no headers.
//
// Decode returns an error, and no records, if the body is not JSON, or is no record of these formats. The records of a batch are decoded all,
// or none. A record of an unknown type is no error.
func Decode(header func(name string) string, body []byte) ([]Record, error) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return nil, nil
	}
	if header != nil {
		for _, prefix := range []string{"ce-", "ce_"} {
			if header(prefix+"specversion") != "" {
				r, err := decodeBinary(prefix, header, body)
				if err != nil {
					return nil, err
				}
				return []Record{r}, nil
			}
		}
	}
	bodies := []json.RawMessage{body}
	if body[0] == '[' {
		if err := json.Unmarshal(body, &bodies); err != nil {
			return nil, fmt.Errorf("decode a batch: %w", err)
		}
	}
	records := make([]Record, 0, len(bodies))
	for _, body := range bodies {
		r, err := decodeOne(body)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// decodeBinary reads an event whose attributes are headers. Those of Kafka are not encoded.
func decodeBinary(prefix string, header func(name string) string, body []byte) (Record, error) {
	var err error
	attribute := func(name string) string {
		value := header(prefix + name)
		if prefix == "ce-" {
			decoded, e := url.PathUnescape(value)
			err = errors.Join(err, e)
			return decoded
		}
		return value
	}
	e := envelope{
		ID: attribute("id"), Source: attribute("source"), Subject: attribute("subject"), Sequence: attribute("sequence"),
		Pipeline: attribute("pipeline"), SnapshotSequence: attribute("snapshotsequence"),
		Replayed: attribute("replayed") == "true", Data: body,
	}
	when, e2 := time.Parse(time.RFC3339Nano, attribute("time"))
	e.Time = when
	if err = errors.Join(err, e2); err != nil {
		return Record{}, fmt.Errorf("decode the headers of record %q: %w", e.ID, err)
	}
	return e.record(strings.TrimPrefix(e.Source, "/clusters/"))
}

// decodeOne reads a structured CloudEvent or plain JSON.
func decodeOne(body []byte) (Record, error) {
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil {
		return Record{}, fmt.Errorf("decode a record: %w", err)
	}
	if e.SpecVersion == "" {
		e.Data = body
		return e.record(e.Cluster)
	}
	return e.record(strings.TrimPrefix(e.Source, "/clusters/"))
}

// envelope is what identifies a record.
type envelope struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Source      string          `json:"source"`  // of a CloudEvent
	Cluster     string          `json:"cluster"` // of plain JSON
	Subject     string          `json:"subject"`
	Time        time.Time       `json:"time"`
	Sequence    string          `json:"sequence"`
	Pipeline    string          `json:"pipeline"`
	Replayed    bool            `json:"replayed"`
	Data        json.RawMessage `json:"data"`
	// SnapshotSequence is of a CloudEvent. Plain JSON has it in its data.
	SnapshotSequence string `json:"snapshotsequence"`
}

func (e *envelope) record(cluster string) (Record, error) {
	var data struct {
		Record
		OldObjectKnown *bool `json:"oldObjectKnown"`
	}
	if err := json.Unmarshal(e.Data, &data); err != nil {
		// A type of a later version may have members of these names that are something else. What could be read is there all the same.
		var other *json.UnmarshalTypeError
		if !errors.As(err, &other) || data.Type.known() {
			return Record{}, fmt.Errorf("decode record %q: %w", e.ID, err)
		}
		data.Record = Record{Type: data.Type}
	}
	r := data.Record
	if e.ID == "" || e.Subject == "" || r.Type == "" {
		return Record{}, fmt.Errorf("decode record %q: it has no id, subject or type; the format raw and the profile knative have none", e.ID)
	}
	r.ID, r.Cluster, r.Subject, r.Time = e.ID, cluster, e.Subject, e.Time
	r.Pipeline, r.Sequence, r.Replayed = e.Pipeline, e.Sequence, e.Replayed
	r.SnapshotSequence = cmp.Or(e.SnapshotSequence, r.SnapshotSequence)
	r.OldObjectUnknown = data.OldObjectKnown != nil && !*data.OldObjectKnown
	if r.IsChange() {
		if r.Namespace = namespaceOf(e.Subject); r.UID() == "" {
			return Record{}, fmt.Errorf("decode record %q: the id is not <cluster>/<uid>/<resourceVersion>/<TYPE>", e.ID)
		}
	}
	return r, nil
}

// namespaceOf returns the namespace in the REST path of an object: /apis/<group>/<version>/namespaces/<namespace>/<resource>/<name>.
func namespaceOf(subject string) string {
	parts := strings.Split(subject, "/")
	for i := 3; i <= 4 && i+3 < len(parts); i++ { // there is no group in /api/v1
		if parts[i] == "namespaces" {
			return parts[i+1]
		}
	}
	return ""
}
