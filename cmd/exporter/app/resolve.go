package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/resources"
)

// Resolve looks up the names of resources that are not written in full. Without such names it sends no request.
func Resolve(ctx context.Context, loaded *config.Config, cluster *rest.Config) error {
	if len(loaded.Unresolved()) == 0 {
		return nil
	}
	catalog, err := resources.Read(ctx, cluster)
	if err == nil {
		err = catalog.Resolve(loaded)
	}
	if err != nil {
		return &FailureError{err}
	}
	return nil
}

// resolveNames is Resolve for a run, which waits for the API server.
func resolveNames(ctx context.Context, loaded *config.Config, cluster *rest.Config, logger *slog.Logger) error {
	names := loaded.Unresolved()
	if len(names) == 0 {
		return nil
	}
	var catalog *resources.Catalog
	err := untilAnswered(ctx, logger, func() (err error) {
		catalog, err = resources.Read(ctx, cluster)
		return err
	})
	if err != nil {
		return err
	}
	if err := catalog.Resolve(loaded); err != nil {
		return &FailureError{err}
	}
	logger.Info("looked up the names of resources", "names", strings.Join(names, " "), "resources", strings.Join(loaded.ResourceNames(), " "))
	return nil
}

// untilAnswered repeats a request until the API server answers it, or ctx ends.
func untilAnswered(ctx context.Context, logger *slog.Logger, request func() error) error {
	for attempt := 0; ; attempt++ {
		err := request()
		if err == nil {
			return nil
		}
		if attempt == 0 && ctx.Err() == nil {
			logger.Warn("waiting for the API server", "err", err)
		}
		select {
		case <-time.After(min(time.Duration(attempt+1)*250*time.Millisecond, 3*time.Second)):
		case <-ctx.Done():
			return fmt.Errorf("stopped before the API server answered: %w", err)
		}
	}
}
