package config

import (
	"mime"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// MaxPipelines is how many pipelines can take from a source.
const MaxPipelines = 64

func (v *validator) pipelines() {
	c := v.config
	v.names("pipelines", len(c.Pipelines))
	for i := range c.Pipelines {
		p, at := &c.Pipelines[i], index("pipelines", i)
		v.pipelineSources(p, at)
		v.filters(p, at)
		v.transforms(p, at)
		v.form(p, at)
		v.delivery(p, at)
		v.backlog(p, at+".backlog")
		if p.Retry.Max < p.Retry.Initial && !v.faults.isBroken(at+".retry.initial") {
			v.fault(at+".retry.max", "must be at least retry.initial; the defaults are 30s and 100ms")
		}
	}
	for i, s := range c.Sources {
		if taking := len(c.Takers(s.Name)); taking > MaxPipelines {
			v.fault(index("sources", i), "%d pipelines take from it; at most %d can: make another source of the same resources", taking, MaxPipelines)
		}
	}
	for i, r := range v.config.Enrichment.Resources {
		path := index("enrichment.resources", i)
		switch first := slices.Index(v.config.Enrichment.Resources, r); {
		case r.Version == "" || delta.IsWildcard(r):
			v.fault(path, "must be one resource, and in full, such as apps/v1/deployments; %s is not", v.shown(path))
		case first < i:
			v.fault(path, "%s is in this list already", v.shown(path))
		}
	}
}

// pipelineSources resolves the sources of p, filling in the default, and compares what they watch.
func (v *validator) pipelineSources(p *Pipeline, at string) {
	at += ".sources"
	for i, text := range p.Sources {
		if slices.Index(p.Sources, text) < i {
			v.fault(index(at, i), "%s is in this list already", v.shown(index(at, i)))
		} else {
			v.refer(index(at, i), text, "sources", v.sourceNames)
		}
	}
	if !v.has(at) {
		for _, s := range v.config.Sources {
			p.Sources = append(p.Sources, s.Name)
		}
	}
	for _, pair := range v.config.Overlaps(p) {
		first, second := pair[0], pair[1]
		if first.Source != second.Source { // that is a fault of the source
			v.fault(at, "%s of %q and %s of %q take the same objects: a pipeline takes every source unless it lists some, and a source leaves out what its exclude names",
				v.shown(index(index("sources", first.Source)+".resources", first.Resource)), v.sourceNames[first.Source].shown,
				v.shown(index(index("sources", second.Source)+".resources", second.Resource)), v.sourceNames[second.Source].shown)
		}
	}
	for _, pair := range v.config.pairs(p, v.config.underTwoNames) {
		v.warn(at, "%s and %s are the same objects, whose records have the same ids: JetStream and consumers keep the one that comes first; leave one out",
			delta.ResourceName(v.config.Resource(pair[0])), delta.ResourceName(v.config.Resource(pair[1])))
	}
	v.secrets(p, at)
}

// secrets warns about Secrets that a pipeline takes.
func (v *validator) secrets(p *Pipeline, at string) {
	pipeline := parent(at)
	takes := slices.ContainsFunc(v.config.Sources, func(s Source) bool {
		return slices.Contains(p.Sources, s.Name) && (s.Takes(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}) ||
			slices.ContainsFunc(s.Resources, func(r schema.GroupVersionResource) bool {
				return r.Version == "" && (r.Resource == "secrets" || r.Resource == "secret")
			}))
	})
	switch {
	case !p.RedactSecrets && takes:
		v.warn(pipeline+".redactSecrets", "the data of Secrets leaves the cluster as it is")
	case !p.RedactSecrets:
		v.warn(pipeline+".redactSecrets", "has no effect now, because no source of the pipeline watches v1/secrets; once one does, their data leaves the cluster as it is")
	case takes && v.config.Redaction == (Redaction{}) && v.config.StateDir == "" && !v.faults.isBroken("redaction") && !v.faults.isBroken("stateDir"):
		v.warn(at, "takes v1/secrets, and neither stateDir nor redaction.key nor redaction.keyFile is set: the digests that replace their data are different after each restart")
	}
}

// delivery checks where a pipeline's records go.
func (v *validator) delivery(p *Pipeline, at string) {
	sink, dead := -1, -1
	if v.present(at + ".sink") {
		sink = v.refer(at+".sink", p.Sink, "sinks", v.sinkNames)
	}
	if v.present(at + ".deadLetter") {
		dead = v.refer(at+".deadLetter", p.DeadLetter, "sinks", v.sinkNames)
	}
	if dead >= 0 && dead == sink {
		v.fault(at+".deadLetter", "must be another sink than the pipeline's own, which could not deliver the record")
	}
	if sink >= 0 {
		v.format(p, at, v.config.Sinks[sink], v.sinkNames[sink].shown)
	}
}

// format checks that records of the pipeline's format keep their headers on the way through its sink.
func (v *validator) format(p *Pipeline, at string, sink Sink, shown string) {
	switch {
	case sink.Config == nil || !sink.Config.Limits().LosesHeaders:
	case p.Format == shape.FormatRaw:
		v.warn(at+".format", "raw records carry their id and type in headers, and those are lost where a request of the sink %q may hold several: set its batch.maxRecords to 1, and leave batch.framing out", shown)
	case p.Format == shape.FormatCloudEventsBinary:
		v.fault(at+".format", "cloudevents-binary has one event per request, its attributes in the headers: set batch.maxRecords of the sink %q to 1 and leave its batch.framing out, or use the format cloudevents, which goes in batches", shown)
	}
}

// form checks that format, body, profile and diff go together.
func (v *validator) form(p *Pipeline, at string) {
	knative, differs, custom := p.Profile == shape.ProfileKnative, p.Diff != shape.DiffNone, p.Format == shape.FormatCustom
	p.BodyProgram = v.expression(at+".body", p.Body, expr.Body)
	switch {
	case v.faults.isBroken(at+".format") || v.faults.isBroken(at+".profile"):
	case knative && p.Format != shape.FormatCloudEvents && p.Format != shape.FormatCloudEventsBinary:
		v.fault(at+".profile", "knative is a profile of CloudEvents: use it with the format cloudevents or cloudevents-binary")
	case p.Format != shape.FormatOTLP && v.has(at+".encoding"):
		v.fault(at+".encoding", "only the format otlp has an encoding: add format: otlp")
	case custom && !v.has(at+".body"):
		v.fault(at+".body", "the format custom needs a body: a CEL expression, such as {\"text\": object.metadata.name}")
	case !custom && v.has(at+".body"):
		v.fault(at+".body", "only the format custom has a body of one's own: add format: custom")
	case !custom && v.has(at+".contentType"):
		v.fault(at+".contentType", "only the format custom has a content type of one's own: add format: custom")
	case custom && v.present(at+".contentType") && !validContentType(p.ContentType):
		v.fault(at+".contentType", "must be a content type, such as application/json; %s is not", v.shown(at+".contentType"))
	case custom && differs:
		v.fault(at+".diff", "a custom body has no place for a difference: remove diff, and use oldObject in the body")
	case custom && p.BodyProgram != nil && !p.BodyProgram.SeesNotices():
		v.warn(at+".body", "gap records and marks of snapshots go through it too, and it looks neither at notice nor at type: on these object is null, and they become dead letters; begin with notice != null ? null : …, which leaves them out")
	case differs && p.Format == shape.FormatRaw:
		v.fault(at+".diff", "a raw record is the bare object, and has no place for a difference; use another format, or diff: none")
	case differs && knative:
		v.fault(at+".diff", "the data of a knative record is the bare object, and has no place for a difference; use the profile kubeferry, or diff: none")
	}
}

func validContentType(text string) bool {
	_, _, err := mime.ParseMediaType(text)
	return err == nil && strings.Contains(text, "/")
}

// backlog checks the bounds, and fills in the default of overflow.
func (v *validator) backlog(p *Pipeline, at string) {
	b := &p.Backlog
	kept := v.config.StateDir != "" || v.faults.isBroken("stateDir")
	switch {
	case b.Overflow == "" && kept:
		b.Overflow = OverflowSpill
	case b.Overflow == "":
		b.Overflow = OverflowBlock
	case b.Overflow == OverflowSpill && !kept:
		v.fault(at+".overflow", "spill needs a stateDir to spill to; set stateDir, or use block")
	}
	if v.present(at+".maxDiskBytes") && !kept {
		v.fault(at+".maxDiskBytes", "has no effect without a stateDir; set stateDir, or remove the key")
	}
}
