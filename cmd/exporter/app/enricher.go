package app

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/enrich"
	"github.com/kubeferry/kubeferry/source"
)

// newEnricher makes the cache that the pipelines with `enrich` share, or nil if there is none.
func newEnricher(loaded *config.Config, cluster *rest.Config, client *source.Client, registry prometheus.Registerer, logger *slog.Logger) (*enrich.Cache, error) {
	if !slices.ContainsFunc(loaded.Pipelines, func(p config.Pipeline) bool { return p.Enrich == config.EnrichInvolvedObject }) {
		return nil, nil
	}
	cluster = rest.CopyConfig(cluster)
	if cluster.QPS == 0 {
		cluster.QPS, cluster.Burst = 20, 40 // pages of lists only
	}
	reader, err := enrich.NewClient(cluster)
	if err != nil {
		return nil, fmt.Errorf("make the client for metadata: %w", err)
	}
	return enrich.New(source.NewKinds(client), reader, int64(loaded.Enrichment.MaxBytes), registry, logger), nil
}
