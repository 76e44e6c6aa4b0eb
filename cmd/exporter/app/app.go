package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/admin"
	"github.com/kubeferry/kubeferry/internal/replication"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// Run is the whole program. It makes the parts, runs them until ctx ends, and stops them in reverse order: watches, then
// pipelines with what waits in them, deliveries, the last commit, connections. ready is called once every watch that can be
// opened has read its state; it may be nil.
func Run(ctx context.Context, loaded *config.Config, cluster *rest.Config, version string, ready func(), logger *slog.Logger) error {
	logger.Info("starting", "version", version, "cluster", loaded.Cluster, "server", cluster.Host)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var running lifecycle
	defer running.stop(logger)

	tuneCollector()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	admin.RegisterClientGo(registry)
	registerBuild(registry, version)
	health := &health{version: version, cluster: loaded.Cluster, started: time.Now(), starting: startingWatches(loaded)}
	if loaded.LeaderElection != nil {
		registerReplica(registry, health)
	} else { // registered early: alerts must fire while the API server is away
		source.RegisterWatches(registry, health.watches)
	}
	if loaded.Server.Listen != "" { // only `tail` has none
		if err := serve(ctx, loaded.Server.Listen, registry, health, &running, fail, logger); err != nil {
			return err
		}
	}

	if err := resolveNames(ctx, loaded, cluster, logger); err != nil {
		return stopped(ctx, err, logger)
	}
	keepManagedFields := slices.ContainsFunc(loaded.Pipelines, func(p config.Pipeline) bool { return p.KeepManagedFields })
	client, err := source.NewClient(cluster, keepManagedFields)
	if err != nil {
		return err
	}
	var replica *replica
	if loaded.LeaderElection != nil {
		replica, err = standBy(ctx, loaded, cluster, client, health, &running, fail, logger)
		if err != nil {
			return stopped(ctx, err, logger)
		}
		health.starting = startingWatches(loaded) // from now on: it may have stood by for days
		source.RegisterWatches(registry, health.watches)
	}
	state, err := openState(ctx, loaded, client, replica, logger)
	if err != nil {
		return stopped(ctx, err, logger)
	}
	running.onStop("state directory", func(context.Context) { state.close() })
	opened, err := OpenSinks(ctx, usedSinks(loaded), UserAgent(version), logger)
	if err != nil {
		return err
	}
	running.onStop("sinks", func(ctx context.Context) { CloseSinks(ctx, opened, logger) })

	enricher := newEnricher(loaded, client, registry, logger)
	pipelines, err := newPipelines(loaded, opened, state.key, enricher, state, pipeline.NewMetrics(registry), logger)
	if err != nil {
		return &FailureError{err}
	}
	sources, err := newSources(loaded, client, pipelines, state, source.NewMetrics(registry), logger)
	if err != nil {
		return &FailureError{err}
	}
	if err := state.begin(sources, pipelines); err != nil {
		return &FailureError{err}
	}
	if state.dead != nil {
		registerState(registry, state)
		trace := &tracer{config: loaded, cluster: cluster, client: client, sources: sources, pipelines: pipelines, dead: state.dead, key: state.key}
		socket := serveControl(ctx, loaded.StateDir, trace, state.committer, logger)
		running.onStop("socket in the state directory", socket.close)
	}
	rates := newRates(pipelines)
	health.running.Store(&parts{sources, opened, pipelines, state, rates, enricher})
	if replica != nil {
		running.onStop("lease", func(context.Context) { replica.handOver() })
	}
	var lastCommit error
	running.onStop("commits", func(context.Context) { lastCommit = state.finish() })
	if replica != nil { // a failure is no kill: nothing was sent
		if err := replica.serve(ctx, state.store); err != nil {
			return err
		}
	}

	deliveries, stopDeliveries := context.WithCancel(context.Background())
	var delivering, watching sync.WaitGroup
	for _, p := range pipelines {
		delivering.Go(func() { p.Run(deliveries) })
	}
	running.onStop("deliveries", func(context.Context) {
		stopDeliveries()
		delivering.Wait()
	})
	running.onStop("backlogs", func(context.Context) {
		if replica != nil && replica.stopDelivering() {
			return
		}
		drainAll(pipelines, loaded.Shutdown.Grace, loaded.StateDir != "", logger)
	})
	if enricher != nil {
		watching.Go(func() { enricher.watches.Run(ctx) })
	}
	for _, s := range sources {
		watching.Go(func() { s.Run(ctx) })
	}
	watching.Go(func() { rates.run(ctx) })
	if ready != nil {
		watching.Go(func() { health.whenReady(ctx, ready) })
	}
	running.onStop("watches", func(context.Context) { watching.Wait() }) // they end with ctx

	<-ctx.Done()
	logger.Info("stopping", "grace", loaded.Shutdown.Grace)
	running.stop(logger)
	if lastCommit != nil {
		return &FailureError{fmt.Errorf("the last commit: %w", lastCommit)}
	}
	if err := failureOf(ctx); err != nil {
		return err
	}
	logger.Info("stopped")
	return nil
}

// serve serves metrics and probes until the program stops.
func serve(ctx context.Context, address string, registry *prometheus.Registry, health *health, running *lifecycle, fail context.CancelCauseFunc, logger *slog.Logger) error {
	server, err := admin.Listen(ctx, address, registry, health.probes(), logger)
	if err != nil {
		return &FailureError{err}
	}
	logger.Info("serving metrics and probes", "address", server.Address())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(); err != nil {
			fail(&FailureError{err})
		}
	})
	running.onStop("server of metrics and probes", func(ctx context.Context) {
		if err := server.Close(ctx); err != nil {
			logger.Warn("close the server of metrics and probes", "err", err)
		}
		serving.Wait()
	})
	return nil
}

// stopped returns why the program cannot start. That is err, unless ctx has ended: then err follows from that, and the cause is what
// failureOf returns.
func stopped(ctx context.Context, err error, logger *slog.Logger) error {
	if ctx.Err() == nil {
		return err
	}
	logger.Info("stopped", "err", err)
	return failureOf(ctx)
}

// failureOf returns why the program ends by itself; nil if a signal ended it.
func failureOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	var failure *FailureError
	if errors.As(cause, &failure) || errors.Is(cause, replication.ErrOtherCluster) {
		return cause
	}
	return nil
}

// FailureError is an error at run time. All other errors are about flags, arguments or the configuration.
type FailureError struct{ Err error }

func (e *FailureError) Error() string { return "kubeferry: " + e.Err.Error() }
func (e *FailureError) Unwrap() error { return e.Err }

// drainAll lets the pipelines deliver what they hold. With a state directory the rest stays in their logs. Without one
// the next start's snapshot has the state but not each change, which is why it is an error.
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
				logger.Error("stopping with changes that were not delivered; the next start sends what exists, and not these changes",
					"pipeline", p.Name(), "left", left)
			}
		})
	}
	draining.Wait()
}
