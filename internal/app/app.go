package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/admin"
	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// CloseTimeout bounds each step of the end that waits for a peer.
const CloseTimeout = 5 * time.Second

// Run is the whole program: it makes the parts, runs them until ctx ends, and takes them down in reverse order:
// watches, then what is in the backlogs, then deliveries, the last commit, connections.
func Run(ctx context.Context, loaded *config.Config, cluster *rest.Config, version string, logger *slog.Logger) error {
	logger.Info("starting", "version", version, "cluster", loaded.Cluster, "server", cluster.Host)
	tuneCollector()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := admin.RegisterClientGo(registry); err != nil {
		return &FailureError{err}
	}

	probes := &probes{version: version, cluster: loaded.Cluster, started: time.Now()}
	server, err := admin.Listen(ctx, loaded.Server.Listen, registry, probes.admin(), logger)
	if err != nil {
		return &FailureError{err}
	}
	logger.Info("serving metrics and probes", "address", server.Address())
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(); err != nil {
			fail(&FailureError{err})
		}
	})
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), CloseTimeout)
		defer cancel()
		if err := server.Close(closing); err != nil {
			logger.Warn("close the server of metrics and probes", "err", err)
		}
		serving.Wait()
	}()

	client, err := source.NewClient(cluster, clientOptions(loaded))
	if err != nil {
		return err
	}
	kept, err := openState(ctx, loaded, client, fail, logger)
	if err != nil && ctx.Err() != nil {
		logger.Info("stopped", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer kept.close()
	key, err := redactionKey(loaded.Redaction, loaded.StateDir)
	if err != nil {
		return err
	}
	opened, err := OpenSinks(ctx, usedSinks(loaded), loaded.StateDir, UserAgent(version), logger)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), CloseTimeout)
		defer cancel()
		CloseSinks(closing, opened, logger)
	}()
	enricher, err := newEnricher(loaded, cluster, client, registry, logger)
	if err != nil {
		return err
	}
	pipelines := newPipelines(loaded, opened, key, enricher, kept, pipeline.NewMetrics(registry), logger)
	sources, err := newSources(loaded, client, pipelines, kept, source.NewMetrics(registry), logger)
	if err != nil {
		return &FailureError{err}
	}
	registry.MustRegister(source.NewCollector(sources))
	if err := checkSources(ctx, sources); err != nil {
		return err
	}
	if err := kept.begin(sources, pipelines); err != nil {
		return &FailureError{err}
	}
	probes.set(sources, pipelines, kept)

	var delivering, watching sync.WaitGroup
	deliveries, stopDeliveries := context.WithCancel(context.Background())
	defer stopDeliveries()
	for _, p := range pipelines {
		delivering.Go(func() { p.Run(deliveries) })
	}
	if enricher != nil {
		watching.Go(func() { enricher.Run(ctx) })
	}
	for _, s := range sources {
		watching.Go(func() { s.Run(ctx) })
	}
	watching.Go(func() { returnMemory(ctx) })

	<-ctx.Done()
	logger.Info("stopping", "grace", loaded.Shutdown.Grace)
	watching.Wait()
	drainAll(pipelines, loaded.Shutdown.Grace, loaded.StateDir != "", logger)
	stopDeliveries()
	delivering.Wait()
	if err := kept.finish(); err != nil {
		return &FailureError{fmt.Errorf("the last commit: %w", err)}
	}
	var failure *FailureError
	if errors.As(context.Cause(ctx), &failure) {
		return failure
	}
	logger.Info("stopped")
	return nil
}

// checkSources finds resources that do not fit their source's namespaces, as far as the API server answers soon.
func checkSources(ctx context.Context, sources []*source.Source) error {
	ctx, cancel := context.WithTimeout(ctx, CloseTimeout)
	defer cancel()
	var errs []error
	for _, s := range sources {
		errs = append(errs, s.Check(ctx))
	}
	return errors.Join(errs...)
}

// drainAll lets the pipelines deliver what they hold. With a state directory the rest stays in their logs. Without one
// it comes again only as part of the next start's snapshot, and a change that was overwritten since does not, so it is
// said aloud.
func drainAll(pipelines []*pipeline.Pipeline, grace time.Duration, logged bool, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var draining sync.WaitGroup
	for _, p := range pipelines {
		draining.Go(func() {
			switch left := p.Drain(ctx); {
			case left == 0:
			case logged:
				logger.Warn("stopping before everything is delivered; the next start goes on with it", "pipeline", p.Name(), "left", left)
			default:
				logger.Error("stopping with changes that were not delivered; the next start sends the state, not these changes",
					"pipeline", p.Name(), "left", left)
			}
		})
	}
	draining.Wait()
}
