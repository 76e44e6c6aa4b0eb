// Package assets prepares, before tests run, what they must not fetch or build while their clocks run.
package assets

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
)

// Prepare fetches or builds one thing, unless it is there. log gets the progress of what takes long.
type Prepare func(ctx context.Context, log io.Writer) error

// All calls each of prepare, until one fails or an interrupt ends it. Progress goes to standard error.
func All(prepare ...Prepare) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for _, p := range prepare {
		if err := p(ctx, os.Stderr); err != nil {
			return err
		}
	}
	return nil
}

// Must is All for a TestMain: it ends the process if something cannot be had.
func Must(prepare ...Prepare) {
	if err := All(prepare...); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the tests:", err)
		os.Exit(1)
	}
}
