package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
)

// payload is the `data` of a CloudEvent, and all of a record of format json.
type payload struct {
	Type     string `json:"type"`
	Resource struct {
		Group    string `json:"group"`
		Version  string `json:"version"`
		Resource string `json:"resource"`
	} `json:"resource"`
	Object    *object  `json:"object"`
	Snapshot  bool     `json:"snapshot"`
	Inferred  bool     `json:"inferred"`
	Namespace string   `json:"namespace"` // of a gap
	From      string   `json:"from"`      // of a gap
	To        string   `json:"to"`        // empty where the resource is gone
	Reason    string   `json:"reason"`
	Phase     string   `json:"phase"` // of a mark, and what follows
	Of        string   `json:"snapshotSequence"`
	Count     int      `json:"count"`
	Complete  bool     `json:"complete"`
	Except    []string `json:"except"`
}

type object struct {
	Metadata struct {
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
}

// ParseCloudEvent reads a record of format cloudevents (structured mode) and checks that its parts agree with each
// other, and with the schema: the parts of the id, the type, the subject, the sequence and the object.
func ParseCloudEvent(body []byte) (Record, error) {
	if err := asyncapi.Line(body, "cloudevents", "knative"); err != nil {
		return Record{}, fmt.Errorf("parse CloudEvent: %w", err)
	}
	var e struct {
		SpecVersion string          `json:"specversion"`
		ID          string          `json:"id"`
		Source      string          `json:"source"`
		Type        string          `json:"type"`
		Subject     string          `json:"subject"`
		Sequence    string          `json:"sequence"`
		Data        json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return Record{}, fmt.Errorf("parse CloudEvent: %w", err)
	}
	var data payload
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return Record{}, fmt.Errorf("parse data of CloudEvent %q: %w", e.ID, err)
	}
	r, err := assemble(e.ID, e.Subject, e.Sequence, data)
	if err != nil {
		return r, err
	}
	want := "dev.kubeferry.resource." + strings.ToLower(r.Type)
	switch r.Type {
	case Gap:
		want = "dev.kubeferry.gap"
	case Mark:
		want = "dev.kubeferry.snapshot"
	}
	switch {
	case e.SpecVersion != "1.0":
		return r, fmt.Errorf("CloudEvent %q: specversion %q", e.ID, e.SpecVersion)
	case e.Source == "":
		return r, fmt.Errorf("CloudEvent %q: no source", e.ID)
	case e.Type != want:
		return r, fmt.Errorf("CloudEvent %q: type %q, want %q", e.ID, e.Type, want)
	}
	return r, nil
}

// ParseJSON reads a record of format json and checks that its parts agree with each other and with the schema.
func ParseJSON(body []byte) (Record, error) {
	if err := asyncapi.Line(body, "json"); err != nil {
		return Record{}, fmt.Errorf("parse record: %w", err)
	}
	var e struct {
		ID       string `json:"id"`
		Subject  string `json:"subject"`
		Sequence string `json:"sequence"`
	}
	var data payload
	if err := errors.Join(json.Unmarshal(body, &e), json.Unmarshal(body, &data)); err != nil {
		return Record{}, fmt.Errorf("parse record: %w", err)
	}
	return assemble(e.ID, e.Subject, e.Sequence, data)
}

// ParseRaw reads a record of format raw: the bare object, and the headers beside it. Of a gap the body is that of
// format json.
func ParseRaw(encoded func(name string) string, body []byte) (Record, error) {
	header := func(name string) string {
		value, err := url.PathUnescape(encoded(name))
		if err != nil {
			return "" // no value that we write; whatever needs it misses it
		}
		return value
	}
	if header("kubeferry-id") == "" {
		return ParseJSON(body)
	}
	data := payload{
		Type: header("kubeferry-type"), Object: new(object),
		Snapshot: header("kubeferry-snapshot") == "true", Inferred: header("kubeferry-inferred") == "true",
	}
	parts := strings.Split(header("kubeferry-resource"), "/")
	if len(parts) == 2 { // of the core group
		parts = append([]string{""}, parts...)
	}
	if len(parts) != 3 {
		return Record{}, fmt.Errorf("record %q: resource %q", header("kubeferry-id"), header("kubeferry-resource"))
	}
	data.Resource.Group, data.Resource.Version, data.Resource.Resource = parts[0], parts[1], parts[2]
	if err := json.Unmarshal(body, data.Object); err != nil {
		return Record{}, fmt.Errorf("parse record %q: %w", header("kubeferry-id"), err)
	}
	return assemble(header("kubeferry-id"), header("kubeferry-subject"), header("kubeferry-sequence"), data)
}

// parseSequence reads twenty digits: an offset and the resource version. Only an inferred DELETED, whose id names the last known version,
// has that of another.
func parseSequence(text string, r Record) (uint64, error) {
	sequence, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, err
	}
	version, err := strconv.ParseUint(r.ResourceVersion, 10, 64)
	switch {
	case err != nil:
		return 0, err
	case len(text) != len("18446744073709551615"):
		return 0, errors.New("it does not sort as text")
	case sequence < version:
		return sequence, fmt.Errorf("the resource version is %d", version)
	}
	return sequence, nil
}

func assemble(id, subject, sequence string, data payload) (Record, error) {
	r := Record{
		ID: id, Type: data.Type, Snapshot: data.Snapshot, Inferred: data.Inferred,
		Resource: schema.GroupVersionResource{
			Group: data.Resource.Group, Version: data.Resource.Version, Resource: data.Resource.Resource,
		},
	}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("record %q: "+format, append([]any{id}, args...)...))
	}
	uid, version, typ, err := parseID(id)
	if err != nil {
		return r, err
	}
	if typ != r.Type {
		fault("data has type %q", r.Type)
	}
	if r.Namespace, r.Name, err = parsePath(subject, r.Resource); err != nil {
		fault("%w", err)
	}
	if r.Type == Gap {
		r.From, r.To, r.Reason = data.From, data.To, data.Reason
		if data.Namespace != r.Namespace {
			fault("namespace %q beside subject %q", data.Namespace, subject)
		}
		return r, errors.Join(faults...)
	}

	if r.Type == Mark {
		r.Of, r.Count, r.Complete, r.Except = data.Of, data.Count, data.Complete, data.Except
		if data.Phase != "completed" || strings.TrimLeft(r.Of, "0") != version {
			fault("phase %q of snapshot %q", data.Phase, r.Of)
		}
		if data.Namespace != r.Namespace || r.Name != "" {
			fault("namespace %q beside subject %q", data.Namespace, subject)
		}
		return r, errors.Join(faults...)
	}

	r.UID, r.ResourceVersion = uid, version
	switch r.Type {
	case Added, Modified, Deleted:
	default:
		fault("unknown type")
	}
	if r.Name == "" {
		fault("subject %q names no object", subject)
	}
	if r.Sequence, err = parseSequence(sequence, r); err != nil {
		fault("sequence %q: %w", sequence, err)
	}
	// Transforms may take the metadata away; what is there must agree.
	if data.Object != nil {
		m := data.Object.Metadata
		for _, field := range []struct{ name, got, want string }{
			{"namespace", m.Namespace, r.Namespace},
			{"name", m.Name, r.Name},
			{"uid", m.UID, uid},
			{"resourceVersion", m.ResourceVersion, version},
		} {
			if field.got != "" && field.got != field.want {
				fault("metadata.%s is %q, want %q", field.name, field.got, field.want)
			}
		}
	}
	return r, errors.Join(faults...)
}
