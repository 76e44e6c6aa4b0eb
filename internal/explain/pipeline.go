package explain

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
)

// explain returns what becomes of a change.
func (x *explainer) explain(ctx context.Context, c change) (*answer, error) {
	resource, kind := x.resourceOf(c.object), x.typeOf(&c)
	a := &answer{
		Object: objectInfo{
			Resource: delta.ResourceName(resource), Kind: c.object.Kind(), Namespace: c.object.Namespace(), Name: c.object.Name(),
			Type: string(kind), OldObjectKnown: c.old != nil,
		},
		Notes: c.notes,
	}
	if hint := resourceHint(resource, x.Config.Sources); hint != "" {
		a.Notes = append(a.Notes, hint)
	}
	var missing []string
	for _, field := range [][2]string{
		{"metadata.name", c.object.Name()}, {"metadata.resourceVersion", c.object.ResourceVersion()}, {"metadata.uid", string(c.object.UID())},
	} {
		if field[1] == "" {
			missing = append(missing, field[0])
		}
	}
	if len(missing) > 0 {
		a.Notes = append(a.Notes, "the object has no "+strings.Join(missing, " and no ")+", which the API server gives it; ids are made of them")
	}
	for n := range x.Config.Pipelines {
		configured := &x.Config.Pipelines[n]
		if len(x.Pipelines) > 0 && !slices.Contains(x.Pipelines, configured.Name) {
			continue
		}
		p := &pipelineExplainer{explainer: x, config: configured, index: n, change: c, kind: kind}
		p.delta = delta.Delta{
			Type: kind, Resource: resource, Watch: "explain", Object: c.object, Observed: x.Now(),
			Snapshot: x.Snapshot && kind == delta.Added,
		}
		if err := p.explain(ctx); err != nil {
			return nil, fmt.Errorf("%s: pipeline %q: %w", objectName(c.object), configured.Name, err)
		}
		a.Pipelines = append(a.Pipelines, p.answer)
	}
	if x.keyNote != "" && bytes.Contains(encoded(a.Pipelines), []byte(pipeline.DigestPrefix)) {
		a.Notes = append(a.Notes, x.keyNote)
	}
	return a, nil
}

// pipelineExplainer explains what one pipeline makes of one change.
type pipelineExplainer struct {
	*explainer
	config *config.Pipeline
	index  int // of the pipeline
	change change
	kind   delta.Type // of the change, as it was given
	delta  delta.Delta
	answer pipelineAnswer
}

func (x *pipelineExplainer) explain(ctx context.Context) error {
	x.answer.Name = x.config.Name
	taken, err := x.sources()
	if err != nil || !taken {
		return err
	}
	p := x.pipelines[x.index]
	before := false
	switch d := x.delta; {
	case x.change.old != nil && d.Type != delta.Added:
		d.Type, d.Object = delta.Modified, x.change.old
		before = p.Passes(&d)
	case d.Type == delta.Deleted: // mostly the last state is that of the version before
		before = p.Passes(&d)
	}
	if x.delta.Type == delta.Modified {
		x.delta.Old = x.change.old
	}
	e := p.Explain(ctx, &x.delta, before, x.redactor)
	for i := range e.Filters {
		if e.Filters[i].Kind == "expr" {
			e.Filters[i].Condition = x.written.expr(x.index, i)
		}
	}
	x.answer.Filters = e.Filters
	for i, step := range e.Transforms {
		t := transformAnswer{Index: i, Kind: step.Kind, Failed: step.After == nil}
		if !t.Failed {
			t.Diff = yamlDiff(step.Before, step.After)
		}
		x.answer.Transforms = append(x.answer.Transforms, t)
	}
	x.conclude(&e)
	x.notes(&e, before)
	return nil
}

// conclude sets the answer, and the record if one is sent.
func (x *pipelineExplainer) conclude(e *pipeline.Explanation) {
	refusal := x.refusal(e)
	switch {
	case !e.Taken && e.Left:
		x.answer.Answer = fmt.Sprintf("not sent: it leaves (%s), and no DELETED passes the filters for types", refusal)
		return
	case !e.Taken:
		x.answer.Answer = "not sent: " + refusal
		return
	}
	err := e.DeadLetter
	if err == nil {
		err = x.record(&e.Record)
	}
	switch {
	case err != nil:
		x.answer.DeadLetter, x.answer.Answer = true, "goes to the dead letter: "+err.Error()
	case e.Left:
		x.answer.Answer += fmt.Sprintf(", as DELETED, since it passes no longer (onLeave: deleted): %s", refusal)
	case x.delta.Type != x.kind:
		x.answer.Answer += ", as " + string(x.delta.Type)
	}
}

// refusal returns in a line which filter is in the way, and why; empty if none is.
func (x *pipelineExplainer) refusal(e *pipeline.Explanation) string {
	for i, filter := range e.Filters {
		if filter.Passed || e.Left && !filter.OfObject {
			continue
		}
		place := fmt.Sprintf("filters[%d] %s", i, filter.Kind)
		switch {
		case filter.Error != "":
			return place + ": " + filter.Error + " (" + filter.Note + ")"
		case filter.Kind == "types":
			return fmt.Sprintf("%s: %s is none of %s", place, x.delta.Type, filter.Condition)
		case filter.Kind == "namespaces":
			return fmt.Sprintf("%s: %s is left out (%s)", place, x.delta.Object.Namespace(), filter.Condition)
		case filter.Kind == "changed":
			return place + ": no change in " + filter.Condition
		default:
			return place + " is false: " + oneLine(filter.Condition)
		}
	}
	return ""
}

func (x *pipelineExplainer) notes(e *pipeline.Explanation, before bool) {
	modified := x.delta.Type == delta.Modified
	if x.config.Enrich == config.EnrichInvolvedObject && strings.HasSuffix(x.delta.Resource.Resource, "events") {
		x.note("the object that the Event is about is not known here, so it has metadataKnown: false; a run adds its labels, annotations and ownerReferences")
	}
	if e.Digested {
		x.note("the pipeline sends the data of Secrets as they are (redactSecrets: false); digests are shown here")
	}
	if x.config.OnLeave == pipeline.OnLeaveDeleted && !e.Passes && x.change.old == nil && modified {
		x.note("if the version before passes, a DELETED is sent (onLeave: deleted): give it with --old")
	}
	if before && !e.Passes && !e.Left && modified {
		x.note("the version before passes and this one does not, which is not reported (onLeave: ignore)")
	}
}

func (x *pipelineExplainer) note(text string) { x.answer.Notes = append(x.answer.Notes, text) }

// sources finds the source that takes the object. With the version before, it also works out what the API server makes
// of a change by which an object comes to match selectors, or stops to.
func (x *pipelineExplainer) sources() (taken bool, err error) {
	var nearest string
	for i := range x.Config.Sources {
		source := &x.Config.Sources[i]
		if !slices.Contains(x.config.Sources, source.Name) {
			continue
		}
		answer, err := x.selects(source, x.change.object)
		if err != nil {
			return false, err
		}
		if old := x.change.old; old != nil && x.delta.Type == delta.Modified && answer.hasResource {
			before, err := x.selects(source, old)
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
		x.answer.Sources = append(x.answer.Sources, answer)
		if answer.Takes {
			return true, nil
		}
		if answer.hasResource || nearest == "" {
			nearest = fmt.Sprintf("source %s: %s", source.Name, answer.Why)
		}
	}
	x.answer.Answer = "not sent: " + nearest
	if n := len(x.answer.Sources); n > 1 && !x.answer.hasResource() {
		x.answer.Answer = "not sent: none of its sources has " + delta.ResourceName(x.delta.Resource)
	}
	return false, nil
}

// hasResource reports whether one of the sources has the object's resource.
func (p *pipelineAnswer) hasResource() bool {
	return slices.ContainsFunc(p.Sources, func(s sourceAnswer) bool { return s.hasResource })
}

func (x *pipelineExplainer) selects(source *config.Source, object *delta.Object) (sourceAnswer, error) {
	if pipeline.IsSecret(x.delta.Resource) {
		redacted, err := x.redactor.Secret(object)
		if err != nil {
			return sourceAnswer{}, err
		}
		object = redacted
	}
	return selects(source, x.delta.Resource, object)
}

// inVersion returns the object with another resource version.
func inVersion(object *delta.Object, resourceVersion string) (*delta.Object, error) {
	u, err := object.Unstructured()
	if err != nil {
		return nil, err
	}
	u.SetResourceVersion(resourceVersion)
	return delta.NewObject(encoded(u.Object))
}

// record sets where the record goes, and in which form. An error is why it cannot be sent.
func (x *pipelineExplainer) record(r *sinks.Record) error {
	n := slices.IndexFunc(x.Config.Sinks, func(s config.Sink) bool { return s.Name == x.config.Sink })
	sink := x.Config.Sinks[n] // the configuration is valid
	d := sinks.Destination{Place: "sink " + sink.Name, Body: r.Body, Headers: sinks.SortedHeaders(r.Headers)}
	if describer, ok := sink.Config.(sinks.Describer); ok {
		d = describer.Describe(r)
	}
	if d.Err != nil {
		return d.Err
	}
	x.answer.Sent, x.answer.Answer = true, "sent to "+d.Place
	x.answer.Record = &record{
		ID: r.ID, DedupID: r.DedupID, Key: r.Key, MessageKey: d.Key, Sink: sink.Name, Destination: d.Place,
		ContentType: r.ContentType, Headers: d.Headers, Bytes: len(d.Body), Body: d.Body,
	}
	return nil
}

// yamlDiff compares two versions of an object, line by line.
func yamlDiff(before, after map[string]any) []string {
	unified := string(diff.Diff("before", yamlOf(before), "after", yamlOf(after)))
	var lines []string
	for n, line := range strings.Split(strings.TrimSuffix(unified, "\n"), "\n") {
		switch {
		case n < 3: // the names of the versions
		case strings.HasPrefix(line, "@@"):
			if len(lines) > 0 {
				lines = append(lines, "…")
			}
		default:
			lines = append(lines, line)
		}
	}
	return lines
}

func yamlOf(object map[string]any) []byte {
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	_ = encoder.Encode(object) // of decoded JSON: it cannot fail
	return b.Bytes()
}
