package main

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

	"github.com/kubeferry/kubeferry/admin"
	"github.com/kubeferry/kubeferry/config"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// closeTimeout bounds each step of the end that waits for a peer.
const closeTimeout = 5 * time.Second

// runApp is the whole program: it makes the parts, runs them until ctx ends, and takes them down in reverse order:
// watches, then what is in the backlogs, then deliveries, then connections.
func runApp(ctx context.Context, loaded *config.Config, cluster *rest.Config, logger *slog.Logger) error {
	logger.Info("starting", "version", versionName(), "cluster", loaded.Cluster, "server", cluster.Host)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := admin.RegisterClientGo(registry); err != nil {
		return &failureError{err}
	}

	key, err := redactionKey(loaded.Redaction)
	if err != nil {
		return err
	}
	opened, err := openSinks(ctx, loaded.Sinks, logger)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		closeSinks(closing, opened, logger)
	}()
	pipelines := newPipelines(loaded, opened, key, pipeline.NewMetrics(registry), logger)
	sources, err := newSources(loaded, cluster, pipelines, source.NewMetrics(registry), logger)
	if err != nil {
		return err
	}
	registry.MustRegister(source.NewCollector(sources))
	if err := checkSources(ctx, sources); err != nil {
		return err
	}

	server, err := admin.Listen(ctx, loaded.Server.Listen, registry, newProbes(loaded.Cluster, sources, pipelines), logger)
	if err != nil {
		return &failureError{err}
	}
	logger.Info("serving metrics and probes", "address", server.Address())
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var serving, delivering, watching sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(); err != nil {
			fail(&failureError{err})
		}
	})
	deliveries, stopDeliveries := context.WithCancel(context.Background())
	defer stopDeliveries()
	for _, p := range pipelines {
		delivering.Go(func() { p.Run(deliveries) })
	}
	for _, s := range sources {
		watching.Go(func() { s.Run(ctx) })
	}

	<-ctx.Done()
	logger.Info("stopping", "grace", loaded.Shutdown.Grace)
	watching.Wait()
	drainAll(pipelines, loaded.Shutdown.Grace, logger)
	stopDeliveries()
	delivering.Wait()
	closing, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := server.Close(closing); err != nil {
		logger.Warn("close the server of metrics and probes", "err", err)
	}
	serving.Wait()
	var failure *failureError
	if errors.As(context.Cause(ctx), &failure) {
		return failure
	}
	logger.Info("stopped")
	return nil
}

// checkSources finds resources that do not fit their source's namespaces, as far as the API server answers soon.
func checkSources(ctx context.Context, sources []*source.Source) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	var errs []error
	for _, s := range sources {
		errs = append(errs, s.Check(ctx))
	}
	return errors.Join(errs...)
}

// drainAll lets the pipelines deliver what they hold. What is left without a state directory comes again only as
// part of the next start's snapshot, and a change that was overwritten since does not, so it is said aloud.
func drainAll(pipelines []*pipeline.Pipeline, grace time.Duration, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var draining sync.WaitGroup
	for _, p := range pipelines {
		draining.Go(func() {
			if left := p.Drain(ctx); left > 0 {
				logger.Error("stopping with changes that were not delivered; the next start sends the state, not these changes",
					"pipeline", p.Name(), "left", left)
			}
		})
	}
	draining.Wait()
}

// stalledAfter is how long a pipeline's dispatcher may not go round before the process counts as stuck; it does so
// every two seconds even when it has nothing to do.
const stalledAfter = 30 * time.Second

func newProbes(cluster string, sources []*source.Source, pipelines []*pipeline.Pipeline) admin.Probes {
	started := time.Now()
	return admin.Probes{
		Healthy: func() error {
			for _, p := range pipelines {
				if since := time.Since(p.Stats().Beat); since > stalledAfter {
					return fmt.Errorf("pipeline %q has not moved for %v", p.Name(), since.Round(time.Second))
				}
			}
			return nil
		},
		Ready: func() error {
			var errs []error
			for _, s := range sources {
				for _, w := range s.Status() {
					if !w.Ready {
						errs = append(errs, fmt.Errorf("source %q: %s %s: %s %s", w.Source, w.Resource, w.Namespace, w.State, w.Error))
					}
				}
			}
			return errors.Join(errs...)
		},
		Status: func() any { return newStatus(cluster, started, sources, pipelines) },
	}
}
