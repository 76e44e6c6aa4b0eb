package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/sinks"
)

// connectTimeout bounds the check of one sink.
const connectTimeout = 15 * time.Second

// Connect opens and checks every configured sink, all at once, and writes one line for each, in the order of the file.
func Connect(ctx context.Context, configured []config.Sink, version string, out io.Writer, logger *slog.Logger) error {
	errs := make([]error, len(configured))
	var checks sync.WaitGroup
	for n, c := range configured {
		checks.Go(func() { errs[n] = checkSink(ctx, c, version, logger) })
	}
	checks.Wait()
	failed := 0
	for n, c := range configured {
		if errs[n] != nil {
			failed++
			fmt.Fprintf(out, "failed  %s (%s): %v\n", c.Name, c.Kind, errs[n])
			continue
		}
		fmt.Fprintf(out, "ok      %s (%s)\n", c.Name, c.Kind)
	}
	if failed > 0 {
		return &FailureError{fmt.Errorf("%d of %d sinks cannot be delivered to", failed, len(configured))}
	}
	return nil
}

// checkSink opens a sink as a run does, without sending a record. One that is no [sinks.Checker] has nothing to check.
func checkSink(ctx context.Context, c config.Sink, version string, logger *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
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
