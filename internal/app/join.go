package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/file"
	"github.com/kubeferry/kubeferry/source"
)

// This file makes the parts from the configuration, and joins sources to pipelines.

// OpenSink is a sink with the limits of its configuration.
type OpenSink struct {
	sinks.Sink
	Limits sinks.Limits
}

// defaultLetters is the name of the sink that takes dead letters where none is configured; no configured name has a
// blank.
const defaultLetters = "dead letters"

// usedSinks are the sinks that some pipeline delivers to, or writes its dead letters to.
func usedSinks(loaded *config.Config) []config.Sink {
	return slices.DeleteFunc(slices.Clone(loaded.Sinks), func(s config.Sink) bool {
		return !slices.ContainsFunc(loaded.Pipelines, func(p config.Pipeline) bool { return p.Sink == s.Name || p.DeadLetter == s.Name })
	})
}

// OpenSinks opens sinks, by name, and the default one for dead letters if there is a state directory. Pipelines that name
// the same sink share it.
func OpenSinks(ctx context.Context, configured []config.Sink, stateDir, userAgent string, logger *slog.Logger) (map[string]OpenSink, error) {
	if stateDir != "" {
		letters := file.NewConfig()
		letters.Path = filepath.Join(stateDir, "dead.jsonl")
		configured = append(slices.Clone(configured), config.Sink{Name: defaultLetters, Kind: "file", Config: letters})
	}
	opened := map[string]OpenSink{}
	for _, c := range configured {
		env := sinks.Env{Name: c.Name, UserAgent: userAgent, Logger: logger.With("sink", c.Name)}
		sink, err := c.Config.Open(ctx, env)
		if err != nil {
			CloseSinks(ctx, opened, logger)
			return nil, fmt.Errorf("open sink %q: %w", c.Name, err)
		}
		limits := c.Config.Limits()
		opened[c.Name] = OpenSink{Sink: sinks.Limit(sink, limits.Concurrency), Limits: limits}
	}
	return opened, nil
}

// CloseSinks closes sinks within ctx. An error of one is logged.
func CloseSinks(ctx context.Context, opened map[string]OpenSink, logger *slog.Logger) {
	for name, sink := range opened {
		if err := sink.Close(ctx); err != nil {
			logger.Warn("close sink", "sink", name, "err", err)
		}
	}
}

// NewDryPipelines makes the configured pipelines as a run does, but without sinks, logs and metrics: nothing can be handed to
// them. They can explain what they would make of a change.
func NewDryPipelines(loaded *config.Config, redactionKey []byte, enricher pipeline.Enricher) []*pipeline.Pipeline {
	unopened := map[string]OpenSink{}
	for _, sink := range loaded.Sinks {
		unopened[sink.Name] = OpenSink{Limits: sink.Config.Limits()}
	}
	return newPipelines(loaded, unopened, redactionKey, enricher, &state{}, pipeline.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
}

// newPipelines makes the configured pipelines; none runs yet.
func newPipelines(loaded *config.Config, opened map[string]OpenSink, redactionKey []byte, enricher pipeline.Enricher, kept *state, metrics *pipeline.Metrics, logger *slog.Logger) []*pipeline.Pipeline {
	var pipelines []*pipeline.Pipeline
	for _, c := range loaded.Pipelines {
		sink := opened[c.Sink]
		options := pipeline.Options{
			Name: c.Name, Cluster: loaded.Cluster,
			Filters:           filters(c.Filters),
			OnLeave:           c.OnLeave,
			Transforms:        transforms(c.Transforms, pipeline.NewRedactor(redactionKey)),
			Diff:              c.Diff,
			KeepManagedFields: c.KeepManagedFields,
			Format:            c.Format,
			Profile:           c.Profile,
			MaxBytes:          int64(c.Backlog.MaxBytes),
			Retry:             c.Retry,
			Sink:              sink, SinkName: c.Sink, Limits: sink.Limits,
			DeadLetter: pipeline.LogOnly{},
		}
		if c.Enrich == config.EnrichInvolvedObject {
			options.Enricher = enricher
		}
		if c.RedactSecrets {
			options.Redactor = pipeline.NewRedactor(redactionKey)
		}
		deadLetter := c.DeadLetter
		if deadLetter == "" {
			deadLetter = defaultLetters
		}
		if letters, ok := opened[deadLetter]; ok {
			options.DeadLetter = pipeline.SinkLetters{Sink: letters, Timeout: letters.Limits.Timeout}
		}
		kept.equip(&options, c.Backlog)
		pipelines = append(pipelines, pipeline.New(options, metrics, logger))
	}
	return pipelines
}

func filters(configured []config.Filter) []pipeline.Filter {
	var filters []pipeline.Filter
	for _, f := range configured {
		if f.Types != nil {
			filters = append(filters, pipeline.TypesFilter(f.Types))
		}
		if f.Namespaces != nil {
			filters = append(filters, pipeline.NamespacesFilter(*f.Namespaces))
		}
		if f.Program != nil {
			filters = append(filters, pipeline.NewExprFilter(f.Program, f.OnError))
		}
		if f.Changed != nil {
			filters = append(filters, pipeline.NewChangedFilter(f.Changed...))
		}
	}
	return filters
}

func clientOptions(loaded *config.Config) source.ClientOptions {
	keeps := func(p config.Pipeline) bool { return p.KeepManagedFields }
	return source.ClientOptions{KeepManagedFields: slices.ContainsFunc(loaded.Pipelines, keeps)}
}

func transforms(configured []config.Transform, redactor *pipeline.Redactor) []pipeline.Transform {
	var transforms []pipeline.Transform
	for _, t := range configured {
		switch {
		case t.Remove != nil:
			transforms = append(transforms, pipeline.RemoveTransform(t.Remove))
		case t.Keep != nil:
			transforms = append(transforms, pipeline.NewKeepTransform(t.Keep...))
		case t.Redact != nil:
			transforms = append(transforms, pipeline.RedactTransform{Redactor: redactor, Paths: t.Redact})
		case t.Set != nil:
			var set pipeline.SetTransform
			for _, a := range t.Set {
				set = append(set, a.Assignment)
			}
			transforms = append(transforms, set)
		case t.Rename != nil:
			var rename pipeline.RenameTransform
			for _, m := range t.Rename {
				rename = append(rename, m.Move)
			}
			transforms = append(transforms, rename)
		}
	}
	return transforms
}

// newSources makes the configured sources; nothing is watched yet.
func newSources(loaded *config.Config, client *source.Client, pipelines []*pipeline.Pipeline, kept *state, metrics *source.Metrics, logger *slog.Logger) ([]*source.Source, error) {
	var made []*source.Source
	for _, c := range loaded.Sources {
		fan := &fanOut{state: kept}
		for n, p := range loaded.Pipelines {
			if slices.Contains(p.Sources, c.Name) {
				fan.pipelines = append(fan.pipelines, pipelines[n])
			}
		}
		if len(fan.pipelines) == 0 {
			continue // it would watch for no pipeline
		}
		if len(fan.pipelines) > source.MaxPipelines {
			return nil, fmt.Errorf("source %q: %d pipelines take from it; at most %d can: make another source of the same resources", c.Name, len(fan.pipelines), source.MaxPipelines)
		}
		options := source.Options{
			Name: c.Name, Resources: c.Resources, Namespaces: c.Namespaces,
			LabelSelector: c.LabelSelector, FieldSelector: c.FieldSelector,
			Snapshot: source.Snapshot(c.Snapshot), OnRollback: kept.rollback,
		}
		fan.equip(&options)
		s := source.New(client, options, fan, metrics, logger)
		if err := kept.restore(s); err != nil {
			return nil, fmt.Errorf("restore source %q: %w", c.Name, err)
		}
		made = append(made, s)
	}
	return made, nil
}
