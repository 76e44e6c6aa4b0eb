package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/config"
	"github.com/kubeferry/kubeferry/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/source"
)

// This file makes the parts from the configuration, and joins sources to pipelines.

// openSink is a sink with the limits of its configuration.
type openSink struct {
	sinks.Sink
	limits sinks.Limits
}

// openSinks opens every configured sink, by name. Pipelines that name the same sink share it.
func openSinks(ctx context.Context, configured []config.Sink, logger *slog.Logger) (map[string]openSink, error) {
	opened := map[string]openSink{}
	for _, c := range configured {
		env := sinks.Env{Name: c.Name, UserAgent: userAgent(), Logger: logger.With("sink", c.Name)}
		sink, err := c.Config.Open(ctx, env)
		if err != nil {
			closeSinks(ctx, opened, logger)
			return nil, fmt.Errorf("open sink %q: %w", c.Name, err)
		}
		limits := c.Config.Limits()
		opened[c.Name] = openSink{Sink: sinks.Limit(sink, limits.Concurrency), limits: limits}
	}
	return opened, nil
}

func closeSinks(ctx context.Context, opened map[string]openSink, logger *slog.Logger) {
	for name, sink := range opened {
		if err := sink.Close(ctx); err != nil {
			logger.Warn("close sink", "sink", name, "err", err)
		}
	}
}

// newPipelines makes the configured pipelines; none runs yet.
func newPipelines(loaded *config.Config, opened map[string]openSink, redactionKey []byte, metrics *pipeline.Metrics, logger *slog.Logger) []*pipeline.Pipeline {
	var pipelines []*pipeline.Pipeline
	for _, c := range loaded.Pipelines {
		sink := opened[c.Sink]
		options := pipeline.Options{
			Name: c.Name, Cluster: loaded.Cluster,
			Filters:           filters(c.Filters),
			KeepManagedFields: c.KeepManagedFields,
			Format:            pipeline.Format(c.Format),
			MaxBytes:          int64(c.Backlog.MaxBytes),
			Retry:             pipeline.Retry{Initial: c.Retry.Initial, Max: c.Retry.Max, Attempts: c.Retry.Attempts},
			Sink:              sink, SinkName: c.Sink, Limits: sink.limits,
			DeadLetter: pipeline.LogOnly{},
		}
		if c.RedactSecrets {
			options.Redactor = pipeline.NewRedactor(redactionKey)
		}
		if letters, ok := opened[c.DeadLetter]; ok {
			options.DeadLetter = pipeline.SinkLetters{Sink: letters, Timeout: letters.limits.Timeout}
		}
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
	}
	return filters
}

// newSources makes the configured sources; nothing is watched yet.
func newSources(loaded *config.Config, cluster *rest.Config, pipelines []*pipeline.Pipeline, metrics *source.Metrics, logger *slog.Logger) ([]*source.Source, error) {
	client, err := source.NewClient(cluster)
	if err != nil {
		return nil, err
	}
	var made []*source.Source
	for _, c := range loaded.Sources {
		var takers fanOut
		for n, p := range loaded.Pipelines {
			if slices.Contains(p.Sources, c.Name) {
				takers = append(takers, pipelines[n])
			}
		}
		options := source.Options{
			Name: c.Name, Resources: c.Resources, Namespaces: c.Namespaces,
			LabelSelector: c.LabelSelector, FieldSelector: c.FieldSelector,
			Snapshot: source.Snapshot(c.Snapshot),
		}
		made = append(made, source.New(client, options, takers, metrics, logger))
	}
	return made, nil
}

// fanOut hands what a source observes to each of its pipelines in turn. A full one holds the others back for as long
// as it stays full: overflow: block.
type fanOut []*pipeline.Pipeline

var _ source.Handler = fanOut(nil)

func (f fanOut) Delta(ctx context.Context, d *delta.Delta) error {
	for _, p := range f {
		if err := p.Delta(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

func (f fanOut) Gap(ctx context.Context, g *delta.Gap) error {
	for _, p := range f {
		if err := p.Gap(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// redactionKey is the configured key, or a random one that lasts as long as the process.
func redactionKey(c config.Redaction) ([]byte, error) {
	switch {
	case c.Key != "":
		return []byte(c.Key), nil
	case c.KeyFile != "":
		key, err := os.ReadFile(c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read redaction.keyFile: %w", err)
		}
		if key = bytes.TrimRight(key, "\r\n"); len(key) == 0 {
			return nil, fmt.Errorf("redaction.keyFile: %s is empty", c.KeyFile)
		}
		return key, nil
	default:
		return []byte(rand.Text()), nil
	}
}
