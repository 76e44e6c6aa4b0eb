package explain

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
)

// explained is what is said of one object.
type explained struct {
	Object    explainedObject     `json:"object"`
	Notes     []string            `json:"notes,omitempty"`
	Pipelines []explainedPipeline `json:"pipelines"`
}

type explainedObject struct {
	Resource  string `json:"resource"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Type is what happened to the object.
	Type string `json:"type"`
	// OldObjectKnown says that the version before is known.
	OldObjectKnown bool `json:"oldObjectKnown"`
}

// explainedPipeline is what is said of one pipeline.
type explainedPipeline struct {
	Name string `json:"pipeline"`
	// Sent is false if the change does not concern the pipeline, or goes to the dead letter.
	Sent bool `json:"sent"`
	// DeadLetter says that it goes there.
	DeadLetter bool `json:"deadLetter,omitempty"`
	// Answer says it in one line.
	Answer     string               `json:"answer"`
	Notes      []string             `json:"notes,omitempty"`
	Sources    []sourceAnswer       `json:"sources"`
	Filters    []explainedFilter    `json:"filters,omitempty"`
	Transforms []explainedTransform `json:"transforms,omitempty"`
	Record     *explainedRecord     `json:"record,omitempty"`
}

// explain says what becomes of a change.
func (x *explainer) explain(ctx context.Context, c change) (*explained, error) {
	resource := x.resourceOf(c.object)
	said := &explained{
		Object: explainedObject{
			Resource: delta.ResourceName(resource), Kind: c.object.Kind(), Namespace: c.object.Namespace(), Name: c.object.Name(),
			Type: string(x.typeOf(c)), OldObjectKnown: c.old != nil,
		},
		Notes: c.notes,
	}
	if hint := resourceHint(resource, c.object.Kind(), x.Config.Sources); hint != "" {
		said.Notes = append(said.Notes, hint)
	}
	var missing []string
	for name, value := range map[string]string{
		"metadata.name": c.object.Name(), "metadata.uid": string(c.object.UID()), "metadata.resourceVersion": c.object.ResourceVersion(),
	} {
		if value == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		said.Notes = append(said.Notes, "the object has no "+strings.Join(missing, " and no ")+", which the API server gives it; ids are made of them")
	}
	digests := false
	for n := range x.Config.Pipelines {
		configured := &x.Config.Pipelines[n]
		if len(x.Pipelines) > 0 && !slices.Contains(x.Pipelines, configured.Name) {
			continue
		}
		one := &pipelineExplainer{explainer: x, config: configured, pipeline: x.pipelines[n], change: c}
		one.delta = delta.Delta{
			Type: x.typeOf(c), Resource: resource, Watch: "explain", Object: c.object, Observed: x.Now(),
		}
		one.delta.Snapshot = x.Snapshot && one.delta.Type == delta.Added
		p, err := one.explain(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: pipeline %q: %w", objectName(c.object), configured.Name, err)
		}
		digests = digests || bytes.Contains(encoded(p), []byte(pipeline.DigestPrefix))
		said.Pipelines = append(said.Pipelines, *p)
	}
	if digests && x.keyNote != "" {
		said.Notes = append(said.Notes, x.keyNote)
	}
	return said, nil
}

// pipelineExplainer explains what one pipeline makes of one change.
type pipelineExplainer struct {
	*explainer
	config   *config.Pipeline
	pipeline *pipeline.Pipeline
	change   change
	delta    delta.Delta
	said     explainedPipeline
}

func (x *pipelineExplainer) explain(ctx context.Context) (*explainedPipeline, error) {
	x.said.Name = x.config.Name
	took, err := x.askSources()
	if err != nil || !took {
		return &x.said, err
	}
	before := false
	switch d := x.delta; {
	case x.change.old != nil && d.Type != delta.Added:
		d.Type, d.Object, d.Old = delta.Modified, x.change.old, nil
		before = x.pipeline.Passes(&d)
	case d.Type == delta.Deleted: // mostly the last state is that of the version before
		before = x.pipeline.Passes(&d)
	}
	if x.delta.Type == delta.Modified {
		x.delta.Old = x.change.old
	}
	e := x.pipeline.Explain(ctx, &x.delta, before, x.redactor)
	place := slices.Index(x.pipelines, x.pipeline)
	for i := range e.Filters {
		if e.Filters[i].Kind == "expr" {
			e.Filters[i].Condition = x.written.expr(place, i)
		}
	}
	x.said.Filters = explainFilters(e.Filters)
	x.said.Transforms = explainTransforms(e.Transforms)
	if x.config.Enrich == config.EnrichInvolvedObject && strings.HasSuffix(x.delta.Resource.Resource, "events") {
		x.note("the object that the Event is about is not known here, so it has metadataKnown: false; a run adds its labels, annotations and ownerReferences")
	}
	if e.Digested {
		x.note("the pipeline sends the data of Secrets as they are (redactSecrets: false); digests are shown here")
	}
	if x.config.OnLeave == pipeline.OnLeaveDeleted && !e.Passes && x.change.old == nil && x.delta.Type == delta.Modified {
		x.note("if the version before passes, a DELETED is sent (onLeave: deleted): give it with --old")
	}
	switch refused := firstRefusal(e); {
	case !e.Taken && e.Left:
		x.said.Answer = fmt.Sprintf("not sent: it leaves (%s), and no DELETED passes the filters for types", refused)
	case !e.Taken:
		x.said.Answer = "not sent: " + refused
	case e.DeadLetter != nil:
		x.deadLetter(e.DeadLetter)
	default:
		x.record(&e.Record)
		if e.Left {
			x.said.Answer += fmt.Sprintf(", as DELETED, since it passes no longer (onLeave: deleted): %s", refused)
		} else if string(x.delta.Type) != x.typeName() {
			x.said.Answer += ", as " + string(x.delta.Type)
		}
	}
	if before && !e.Passes && !e.Left && x.delta.Type == delta.Modified {
		x.note("the version before passes and this one does not, which nobody is told (onLeave: ignore)")
	}
	return &x.said, nil
}

func (x *pipelineExplainer) typeName() string { return string(x.typeOf(x.change)) }

func (x *pipelineExplainer) note(text string) { x.said.Notes = append(x.said.Notes, text) }

func (x *pipelineExplainer) deadLetter(err error) {
	x.said.DeadLetter = true
	x.said.Answer = "goes to the dead letter: " + err.Error()
}

// askSources finds the source that takes the object. With the version before, it also finds out what the API server
// makes of a change by which an object comes to match selectors, or stops to.
func (x *pipelineExplainer) askSources() (took bool, err error) {
	var nearest string
	for i := range x.Config.Sources {
		source := &x.Config.Sources[i]
		if !slices.Contains(x.config.Sources, source.Name) {
			continue
		}
		answer, err := x.ask(source, x.change.object)
		if err != nil {
			return false, err
		}
		if old := x.change.old; old != nil && x.delta.Type == delta.Modified && answer.hasResource {
			before, err := x.ask(source, old)
			if err != nil {
				return false, err
			}
			switch {
			case answer.Takes && !before.Takes:
				x.delta.Type = delta.Added
				x.note("the version before is not in the source (" + before.Why + "), so the API server reports an ADDED")
			case before.Takes && !answer.Takes:
				if x.delta.Object, err = inVersion(old, x.change.object.ResourceVersion()); err != nil {
					return false, err
				}
				x.delta.Type = delta.Deleted
				x.note("the object is in the source no longer (" + answer.Why + "), so the API server reports a DELETED of the version before")
				answer = before
			}
		}
		x.said.Sources = append(x.said.Sources, answer)
		if answer.Takes {
			return true, nil
		}
		if answer.hasResource || nearest == "" {
			nearest = fmt.Sprintf("source %s: %s", source.Name, answer.Why)
		}
	}
	x.said.Answer = "not sent: " + nearest
	if n := len(x.said.Sources); n > 1 && !slices.ContainsFunc(x.said.Sources, func(a sourceAnswer) bool { return a.hasResource }) {
		x.said.Answer = "not sent: none of its sources has " + delta.ResourceName(x.delta.Resource)
	}
	return false, nil
}

func (x *pipelineExplainer) ask(source *config.Source, object *delta.Object) (sourceAnswer, error) {
	if pipeline.IsSecret(x.delta.Resource) {
		redacted, err := x.redactor.Secret(object)
		if err != nil {
			return sourceAnswer{}, err
		}
		object = redacted
	}
	return askSource(source, x.delta.Resource, object)
}

// inVersion is the object with another resource version.
func inVersion(object *delta.Object, resourceVersion string) (*delta.Object, error) {
	u, err := object.Unstructured()
	if err != nil {
		return nil, err
	}
	u.SetResourceVersion(resourceVersion)
	raw, err := u.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("encode %s", objectName(object)) // without the cause, which may quote it
	}
	return delta.NewObject(raw)
}

// record says where the record goes, and in which form.
func (x *pipelineExplainer) record(r *sinks.Record) {
	n := slices.IndexFunc(x.Config.Sinks, func(s config.Sink) bool { return s.Name == x.config.Sink })
	sink := x.Config.Sinks[n] // the configuration is valid
	d := sinks.Destination{Place: "sink " + sink.Name, Body: r.Body, Headers: sinks.SortedHeaders(r.Headers)}
	if describer, ok := sink.Config.(sinks.Describer); ok {
		d = describer.Describe(r)
	}
	if d.Err != nil {
		x.deadLetter(d.Err)
		return
	}
	x.said.Sent, x.said.Answer = true, "sent to "+d.Place
	record := &explainedRecord{
		ID: r.ID, DedupID: r.DedupID, Key: r.Key, MessageKey: d.Key, Sink: sink.Name, Destination: d.Place,
		ContentType: r.ContentType, Bytes: len(d.Body), Body: d.Body,
	}
	for _, header := range d.Headers {
		record.Headers = append(record.Headers, explainedHeader(header))
	}
	x.said.Record = record
}
