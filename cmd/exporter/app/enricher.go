package app

import (
	"context"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/enrich"
	"github.com/kubeferry/kubeferry/source"
)

// enricher is the metadata of the objects that Events are about. It is the handler of watches of its own, which have no pipelines.
type enricher struct {
	source.NoPipelines
	*enrich.Cache
	watches *source.Source
}

var _ source.Handler = (*enricher)(nil)

// newEnricher makes the enricher that the pipelines with `enrich` share, or nil if there is none.
func newEnricher(loaded *config.Config, client *source.Client, registry prometheus.Registerer, logger *slog.Logger) *enricher {
	if !slices.ContainsFunc(loaded.Pipelines, func(p config.Pipeline) bool { return p.Enrich == config.EnrichInvolvedObject }) {
		return nil
	}
	e := &enricher{Cache: enrich.New(int64(loaded.Enrichment.MaxBytes), registry)}
	options := source.Options{Name: "enrichment", Resources: loaded.Enrichment.Resources}
	uncounted := source.NewMetrics(prometheus.NewRegistry()) // the metrics of sources are about what is sent
	e.watches = source.New(client, options, e, uncounted, logger)
	return e
}

// Delta implements [source.Handler].
func (e *enricher) Delta(_ context.Context, d *delta.Delta, _ source.Recipients, record func(passed source.PipelineSet)) error {
	if d.Type == delta.Deleted {
		e.Delete(d.Object)
	} else {
		e.Put(d.Object)
	}
	record(0)
	return nil
}
