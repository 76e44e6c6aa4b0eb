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

// Type is the kind of a record. Later versions of kubeferry may have more; a consumer ignores those.
type Type string

// The types of records. The first three are changes.
const (
	Added    Type = "ADDED"
	Modified Type = "MODIFIED"
	Deleted  Type = "DELETED"
	// Gap is a stretch of history that could not be read. What differs follows as inferred changes.
	Gap Type = "GAP"
	// Mark ends a snapshot.
	Mark Type = "SNAPSHOT"
)

// Resource is a kind of object. Group is empty for the core group.
type Resource struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

// Key names an object: of several clusters in one stream, two may have the same subject.
type Key struct{ Cluster, Subject string }

// Record is a change of an object, a gap, or the mark of a snapshot. What a type of record has not is zero.
type Record struct {
	// ID is the same each time that the record is sent.
	ID string
	// Cluster is the name of the cluster.
	Cluster string
	// Subject is the REST path of the object; of a gap or a mark that of the collection.
	Subject string
	// Time is when kubeferry first saw the change.
	Time time.Time
	// Pipeline is the one that sent the record.
	Pipeline string
	// Sequence orders the changes of one subject as text. Gaps and marks have none.
	Sequence string
	// SnapshotSequence is in each record that a pipeline sends of a resource while a snapshot of it runs there, and in the mark of the snapshot.
	SnapshotSequence string
	// Replayed is set if `kubeferry replay` sent the record: it was a dead letter, and may come after later ones.
	Replayed bool

	Type     Type
	Resource Resource
	// Namespace of the object; of a gap or a mark the one that they are about, or empty for all.
	Namespace string

	// Of a change: the object, and the previous version as the pipeline's diff has it.
	Object             json.RawMessage
	OldObject, Patch   json.RawMessage
	OldResourceVersion string
	// OldObjectUnknown is set if a previous version is wanted, and unknown.
	OldObjectUnknown  bool
	Snapshot          bool // the object existed before
	Inferred          bool // found by comparing: the change itself was missed
	FinalStateUnknown bool // of a DELETED: the object may have changed before

	// Of a gap: the sequences around it, and why there is one. From is empty if nothing is known of before, To if the resource is gone.
	From, To, Reason string

	// Of a mark: how many objects the snapshot had, and whether anything follows from it. Except are the subjects of objects that it lacks, as
	// their records went to the dead letter.
	Count    uint64
	Complete bool
	Except   []string
}

func (t Type) known() bool {
	return t == Added || t == Modified || t == Deleted || t == Gap || t == Mark
}

// IsChange reports whether a record is about one object.
func (r *Record) IsChange() bool { return r.Type == Added || r.Type == Modified || r.Type == Deleted }

// Key names the object of a change.
func (r *Record) Key() Key { return Key{r.Cluster, r.Subject} }

// UID is that of the object, taken from the id: transforms may have removed it from the object.
func (r *Record) UID() string { return r.idPart(3) }

// ResourceVersion is that of the object, taken from the id.
func (r *Record) ResourceVersion() string { return r.idPart(2) }

// idPart counts from the end of the id, since a cluster's name may hold slashes.
func (r *Record) idPart(n int) string {
	parts := strings.Split(r.ID, "/")
	if !r.IsChange() || len(parts) < 4 {
		return ""
	}
	return parts[len(parts)-n]
}

// Above reports whether a change is above another of the same object: by [Record.Sequence], then a DELETED before others, then by
// [Record.SnapshotSequence]. Of several changes of an object, in whatever order they arrive, the highest is the last one.
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

// Decode returns the records of a message: one, those of a batch, or none of a tombstone, which has no body. header returns the value
// of a header of the message, or an empty text; it is nil if there are none. It is called with names in lower case: http.Header.Get
// and nats.Header.Get will do. The formats are cloudevents, cloudevents-binary and json.
func Decode(header func(name string) string, body []byte) ([]Record, error) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return nil, nil
	}
	if header != nil {
		for _, prefix := range []string{"ce-", "ce_"} {
			if header(prefix+"specversion") != "" {
				r, err := decodeBinary(prefix, header, body)
				return []Record{r}, err
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
		Pipeline: attribute("pipeline"), SnapshotExtension: attribute("snapshotsequence"),
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
	// SnapshotExtension is of a CloudEvent, SnapshotSequence of plain JSON.
	SnapshotExtension string `json:"snapshotsequence"`
	SnapshotSequence  string `json:"snapshotSequence"`
}

// content is the data of a record.
type content struct {
	Type               Type            `json:"type"`
	Resource           Resource        `json:"resource"`
	Namespace          string          `json:"namespace"`
	Object             json.RawMessage `json:"object"`
	OldObject          json.RawMessage `json:"oldObject"`
	Patch              json.RawMessage `json:"patch"`
	OldResourceVersion string          `json:"oldResourceVersion"`
	OldObjectKnown     *bool           `json:"oldObjectKnown"`
	Snapshot           bool            `json:"snapshot"`
	SnapshotSequence   string          `json:"snapshotSequence"` // of a mark
	Inferred           bool            `json:"inferred"`
	FinalStateUnknown  bool            `json:"finalStateUnknown"`
	From               string          `json:"from"`
	To                 string          `json:"to"`
	Reason             string          `json:"reason"`
	Count              uint64          `json:"count"`
	Complete           bool            `json:"complete"`
	Except             []string        `json:"except"`
}

func (e *envelope) record(cluster string) (Record, error) {
	var c content
	if err := json.Unmarshal(e.Data, &c); err != nil {
		// A type of a later version may have members of these names that are something else. What could be read is there all the same.
		var other *json.UnmarshalTypeError
		if !errors.As(err, &other) || other.Field == "type" || c.Type.known() {
			return Record{}, fmt.Errorf("decode record %q: %w", e.ID, err)
		}
		c = content{Type: c.Type}
	}
	if e.ID == "" || e.Subject == "" || c.Type == "" {
		return Record{}, fmt.Errorf("decode record %q: it has no id, subject or type, as of the format raw or the profile knative", e.ID)
	}
	r := Record{
		ID: e.ID, Cluster: cluster, Subject: e.Subject, Time: e.Time, Sequence: e.Sequence, Replayed: e.Replayed,
		Pipeline: e.Pipeline, SnapshotSequence: cmp.Or(e.SnapshotSequence, e.SnapshotExtension, c.SnapshotSequence),
		Type: c.Type, Resource: c.Resource, Namespace: c.Namespace,
		Object: c.Object, OldObject: c.OldObject, Patch: c.Patch, OldResourceVersion: c.OldResourceVersion,
		OldObjectUnknown: c.OldObjectKnown != nil && !*c.OldObjectKnown,
		Snapshot:         c.Snapshot, Inferred: c.Inferred, FinalStateUnknown: c.FinalStateUnknown,
		From: c.From, To: c.To, Reason: c.Reason,
		Count: c.Count, Complete: c.Complete, Except: c.Except,
	}
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
