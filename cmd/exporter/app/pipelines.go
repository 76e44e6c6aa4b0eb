package app

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// NewDryPipelines makes the configured pipelines as a run does, but without sinks, logs and metrics: nothing can be handed to
// them. They can explain what they would make of a change.
func NewDryPipelines(loaded *config.Config, redactionKey []byte, enricher shape.Enricher) []*pipeline.Pipeline {
	unopened := map[string]OpenSink{}
	for _, sink := range loaded.Sinks {
		unopened[sink.Name] = OpenSink{Limits: sink.Config.Limits()}
	}
	pipelines, _ := newPipelines(loaded, unopened, redactionKey, enricher, &state{}, pipeline.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)) // without a state directory nothing is read
	return pipelines
}

// newPipelines makes the configured pipelines; none runs yet.
func newPipelines(loaded *config.Config, opened map[string]OpenSink, redactionKey []byte, enricher shape.Enricher, state *state, metrics *pipeline.Metrics, logger *slog.Logger) ([]*pipeline.Pipeline, error) {
	redactor := shape.NewRedactor(redactionKey, loaded.Cluster)
	large := new(sync.Mutex)
	var pipelines []*pipeline.Pipeline
	for _, c := range loaded.Pipelines {
		sink := opened[c.Sink]
		options := pipeline.Options{
			Options: shape.Options{
				Name: c.Name, Cluster: loaded.Cluster,
				Filters:           filters(c.Filters),
				OnLeave:           c.OnLeave,
				Transforms:        transforms(c.Transforms, redactor),
				Diff:              c.Diff,
				KeepManagedFields: c.KeepManagedFields,
				Format:            c.Format,
				Encoding:          c.Encoding,
				Profile:           c.Profile,
				Large:             large,
			},
			MaxBytes: int64(c.Backlog.MaxBytes),
			Retry:    c.Retry,
			Sink:     sink, SinkName: c.Sink, Limits: sink.Limits, Slots: sink.slots,
			DeadLetter: state.deadLetters(),
		}
		if c.Enrich == config.EnrichInvolvedObject {
			options.Enricher = enricher
		}
		if c.Rate != nil {
			options.Rate = *c.Rate
		}
		if c.BodyProgram != nil {
			options.Body = &shape.Body{Program: c.BodyProgram, ContentType: c.ContentType}
		}
		if c.RedactSecrets {
			options.Redactor = redactor
		}
		if letters, ok := opened[c.DeadLetter]; ok {
			options.DeadLetter = pipeline.SinkLetters{Sink: letters, Slots: letters.slots.Share(nil), Permit: state.permit, Timeout: letters.Limits.Timeout}
		}
		if err := state.setLog(&options, c.Backlog); err != nil {
			return nil, fmt.Errorf("read the log of pipeline %q: %w", c.Name, err)
		}
		pipelines = append(pipelines, pipeline.New(options, metrics, logger))
	}
	return pipelines, nil
}

func filters(configured []config.Filter) []shape.Filter {
	var filters []shape.Filter
	for _, f := range configured {
		if f.Types != nil {
			filters = append(filters, shape.TypesFilter(f.Types))
		}
		if f.Namespaces != nil {
			filters = append(filters, shape.NamespacesFilter(*f.Namespaces))
		}
		if f.Program != nil {
			filters = append(filters, shape.NewExprFilter(f.Program, f.Written, f.OnError))
		}
		if f.Changed != nil {
			var changed shape.ChangedFilter
			for _, path := range f.Changed {
				changed = append(changed, path.Path)
			}
			filters = append(filters, changed)
		}
		if f.Limit != nil {
			filters = append(filters, shape.NewLimitFilter(f.Limit.Program, f.Limit.Count, f.Limit.Every))
		}
	}
	return filters
}

func transforms(configured []config.Transform, redactor *shape.Redactor) []shape.Transform {
	var transforms []shape.Transform
	for _, t := range configured {
		switch {
		case t.Remove != nil:
			transforms = append(transforms, shape.RemoveTransform(t.Remove))
		case t.Keep != nil:
			transforms = append(transforms, shape.KeepTransform(t.Keep))
		case t.Redact != nil:
			transforms = append(transforms, shape.RedactTransform{Redactor: redactor, Paths: t.Redact})
		case t.Set != nil:
			var set shape.SetTransform
			for _, a := range t.Set {
				set = append(set, a.Assignment)
			}
			transforms = append(transforms, set)
		case t.Rename != nil:
			var rename shape.RenameTransform
			for _, m := range t.Rename {
				rename = append(rename, m.Move)
			}
			transforms = append(transforms, rename)
		}
	}
	return transforms
}
