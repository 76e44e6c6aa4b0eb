// Package assets prepares, before tests run, what they must not fetch or build while their clocks run.
package assets

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sync/errgroup"

	"github.com/kubeferry/kubeferry/test/internal/progress"
)

// Prepare fetches or builds one thing, unless it is there. log gets the progress of what takes long.
type Prepare func(ctx context.Context, log io.Writer) error

// All calls each of prepare, two at a time in their order, until one fails or an interrupt ends it: while one links or downloads, which
// keeps a core busy or none, another one compiles. Progress goes to standard error.
func All(prepare ...Prepare) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return Beside(ctx, progress.New(os.Stderr, os.Stderr), prepare...)
}

// Beside is All for a program that has a context and a log of its own.
func Beside(ctx context.Context, log io.Writer, prepare ...Prepare) error {
	running, ctx := errgroup.WithContext(ctx)
	running.SetLimit(2)
	for _, p := range prepare {
		running.Go(func() error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			return p(ctx, log)
		})
	}
	return running.Wait()
}

// Must is All for a TestMain: it ends the process if something cannot be had.
func Must(prepare ...Prepare) {
	if err := All(prepare...); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the tests:", err)
		os.Exit(1)
	}
}
