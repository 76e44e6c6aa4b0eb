package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// explain returns what becomes of a change.
func (x *explainer) explain(ctx context.Context, c change) (*answer, error) {
	d := x.delta(c)
	a := &answer{Object: objectInfo{
		Resource: delta.ResourceName(d.Resource), Kind: c.object.Kind(), Namespace: c.object.Namespace(), Name: c.object.Name(),
		Type: string(d.Type), OldObjectKnown: c.old != nil,
	}}
	for i, configured := range x.Config.Pipelines {
		if len(x.Pipelines) > 0 && !slices.Contains(x.Pipelines, configured.Name) {
			continue
		}
		p, err := x.explainPipeline(ctx, i, d, c.old)
		if err != nil {
			return nil, fmt.Errorf("%s: pipeline %q: %w", objectName(c.object), configured.Name, err)
		}
		a.Pipelines = append(a.Pipelines, p)
	}
	if x.keyNote != "" && bytes.Contains(encoded(a.Pipelines), []byte(shape.DigestPrefix)) {
		a.Notes = append(a.Notes, x.keyNote)
	}
	return a, nil
}

// explainPipeline returns what the pipeline at an index of the configuration makes of a change.
func (x *explainer) explainPipeline(ctx context.Context, index int, d *delta.Delta, old *delta.Object) (pipelineAnswer, error) {
	configured, p := &x.Config.Pipelines[index], x.pipelines[index]
	answer := pipelineAnswer{Name: configured.Name}
	if taken, err := x.findSource(&answer, configured.Sources, d); err != nil || !taken {
		return answer, err
	}
	// The pipeline has the object if the previous version passed. Of a deleted object, the last state is taken for it.
	previous := *d
	previous.Old = nil
	if old != nil {
		previous.Type, previous.Object = delta.Modified, old
	}
	had := (old != nil || d.Type == delta.Deleted) && p.Shaper().Passes(&previous)

	e := p.Shaper().Explain(ctx, d, had, x.redactor)
	answer.Filters = e.Filters
	answer.Transforms = transforms(configured.Transforms, e.Versions)
	if configured.Enrich == config.EnrichInvolvedObject && strings.HasSuffix(d.Resource.Resource, "events") {
		answer.Notes = append(answer.Notes, "the object that the Event is about is not known here, so it has metadataKnown: false; a run adds its labels, annotations and ownerReferences")
	}
	if !configured.RedactSecrets && shape.IsSecret(d.Resource) {
		answer.Notes = append(answer.Notes, "the pipeline sends the data of Secrets as they are (redactSecrets: false); digests are shown here")
	}
	if configured.Rate != nil && e.Taken {
		answer.Notes = append(answer.Notes, fmt.Sprintf("rate: %v a second are sent on average; what exceeds that waits", configured.Rate.PerSecond))
	}
	if d.Type == delta.Deleted && !e.Passes && !e.Taken && configured.OnLeave == shape.OnLeaveIgnore {
		answer.Notes = append(answer.Notes, "if an earlier version was sent, a DELETED follows that only names the object, unless a filter of types leaves it out")
	}
	x.conclude(&answer, configured.Sink, &e)
	return answer, nil
}

// conclude sets the answer, and the record if one is sent.
func (x *explainer) conclude(answer *pipelineAnswer, sink string, e *shape.Explanation) {
	if !e.Taken {
		answer.Answer = "not sent: " + refusal(e)
		return
	}
	err := e.DeadLetter
	if err == nil {
		n := slices.IndexFunc(x.Config.Sinks, func(s config.Sink) bool { return s.Name == sink })
		answer.Record, err = NewRecord(x.Config.Sinks[n], &e.Record) // the configuration is valid
	}
	if err != nil {
		answer.DeadLetter, answer.Answer = true, "becomes a dead letter: "+err.Error()
		return
	}
	answer.Sent, answer.Answer = true, "sent to "+answer.Record.Destination
	if e.Left {
		answer.Answer += ", as DELETED, since it passes no longer (onLeave: deleted): " + refusal(e)
	}
}

// refusal returns in a line which filter the change does not pass. The last one is about the object itself where that
// leaves the pipeline.
func refusal(e *shape.Explanation) (text string) {
	if e.NoBody {
		return "the body is null"
	}
	for i, filter := range e.Filters {
		if !filter.Evaluated || filter.Passed || text != "" && !e.Left {
			continue
		}
		text = fmt.Sprintf("filters[%d] does not pass: %s: %s", i, filter.Kind, shortened(filter.Condition))
	}
	return text
}

// findSource sets which of the sources takes the object, or why none does.
func (x *explainer) findSource(answer *pipelineAnswer, names []string, d *delta.Delta) (taken bool, err error) {
	answer.Answer = "not sent: its sources do not have " + delta.ResourceName(d.Resource)
	for i := range x.Config.Sources {
		source := &x.Config.Sources[i]
		if !slices.Contains(names, source.Name) || !source.Takes(d.Resource) {
			continue
		}
		selected, err := selects(source, d)
		if err != nil {
			return false, err
		}
		answer.Sources = append(answer.Sources, selected)
		if selected.Takes {
			return true, nil
		}
		answer.Answer = fmt.Sprintf("not sent: source %s: %s", source.Name, selected.Why)
	}
	return false, nil
}

// NewRecord returns where a record goes, and in which form. An error is why it cannot be sent.
func NewRecord(sink config.Sink, r *sinks.Record) (*Record, error) {
	d := sinks.Destination{Place: "sink " + sink.Name, Body: r.Content(), Headers: sinks.SortedHeaders(r.Headers)}
	if describer, ok := sink.Config.(sinks.Describer); ok {
		d = describer.Describe(r)
	}
	if d.Err != nil {
		return nil, d.Err
	}
	content := d.Body
	if r.OTLP { // which may be sent as protobuf
		content, d.Body = r.Body, r.Body
	}
	if !json.Valid(content) {
		content = encoded(string(content))
	}
	return &Record{
		ID: r.ID, DedupID: r.DedupID, Key: r.Key, MessageKey: d.Key, Sink: sink.Name, Destination: d.Place,
		ContentType: r.ContentType, Headers: d.Headers, Bytes: len(d.Body), Body: content, sent: d.Body,
	}, nil
}

// transforms returns what the transforms that were begun did. Only the last of them can have failed.
func transforms(configured []config.Transform, versions []map[string]any) (answers []transformAnswer) {
	for i := range min(len(configured), len(versions)) {
		answer := transformAnswer{Kind: configured[i].Kind(), Failed: i+1 == len(versions)}
		if !answer.Failed {
			answer.Diff = yamlDiff(versions[i], versions[i+1])
		}
		answers = append(answers, answer)
	}
	return answers
}

// yamlDiff returns the unified diff of two versions of an object, without its header.
func yamlDiff(before, after map[string]any) []string {
	unified := string(diff.Diff("before", yamlOf(before), "after", yamlOf(after)))
	lines := strings.Split(strings.TrimSuffix(unified, "\n"), "\n")
	return lines[min(3, len(lines)):]
}

func yamlOf(object map[string]any) []byte {
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	_ = encoder.Encode(object) // of decoded JSON: it cannot fail
	return b.Bytes()
}
