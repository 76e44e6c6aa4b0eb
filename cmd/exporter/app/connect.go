package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/rbac"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/source"
)

// connectTimeout bounds each check.
const connectTimeout = 15 * time.Second

// check is one line of what Connect writes.
type check struct {
	name string
	run  func(context.Context) error
}

// Connect checks what a run depends on, all at once, and writes one line for each: every resource and every right at the API
// server, and every sink, opened without sending a record.
func Connect(ctx context.Context, loaded *config.Config, cluster *rest.Config, version string, out io.Writer, logger *slog.Logger) error {
	if err := Resolve(ctx, loaded, cluster); err != nil {
		return err
	}
	client, err := source.NewClient(cluster, false)
	if err != nil {
		return err
	}
	checks := append(checkResources(loaded, client), checkRights(loaded, client)...)
	for _, c := range loaded.Sinks {
		checks = append(checks, check{
			fmt.Sprintf("%s (%s)", c.Name, c.Kind),
			func(ctx context.Context) error { return checkSink(ctx, c, version, logger) },
		})
	}
	errs := make([]error, len(checks))
	var running sync.WaitGroup
	for n, c := range checks {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, connectTimeout)
			defer cancel()
			errs[n] = c.run(ctx)
		})
	}
	running.Wait()
	failed := 0
	for n, c := range checks {
		if errs[n] != nil {
			failed++
			fmt.Fprintf(out, "failed  %s: %v\n", c.name, errs[n])
			continue
		}
		fmt.Fprintf(out, "ok      %s\n", c.name)
	}
	if failed > 0 {
		return &FailureError{fmt.Errorf("%d of %d checks failed", failed, len(checks))}
	}
	return nil
}

// checkResources checks that the API server serves each resource.
func checkResources(loaded *config.Config, client *source.Client) (checks []check) {
	for _, s := range loaded.Sources {
		for _, resource := range s.Resources {
			checks = append(checks, check{
				fmt.Sprintf("%s (source %s)", delta.ResourceName(resource), s.Name),
				func(ctx context.Context) error { return client.Serves(ctx, resource) },
			})
		}
	}
	return checks
}

// checkRights checks that the API server grants each rule that a run needs.
func checkRights(loaded *config.Config, client *source.Client) (checks []check) {
	for _, rule := range rbac.Needed(loaded, rbac.Involved()) {
		checks = append(checks, check{
			"right of a " + rule.String(),
			func(ctx context.Context) error {
				verb, err := rule.Missing(ctx, client)
				if err == nil && verb != "" {
					err = fmt.Errorf("%s is not granted; `exporter rbac` prints all rules that are needed", verb)
				}
				return err
			},
		})
	}
	return checks
}

// checkSink opens a sink as a run does, without sending a record. One that is no [sinks.Checker] has nothing to check.
func checkSink(ctx context.Context, c config.Sink, version string, logger *slog.Logger) error {
	sink, err := c.Config.Open(ctx, sinks.Env{Name: c.Name, UserAgent: UserAgent(version), Logger: logger.With("sink", c.Name)})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseTimeout)
		defer cancel()
		_ = sink.Close(closing) // nothing was sent, so nothing can be lost
	}()
	if checker, ok := sink.(sinks.Checker); ok {
		return checker.Check(ctx)
	}
	return nil
}
