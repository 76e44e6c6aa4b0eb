package controlplane

import (
	"context"
	"testing"
	"time"
)

// ForTest starts a control plane that ends with the test. A package with many tests had better start one in TestMain.
func ForTest(tb testing.TB, opts Options) *ControlPlane {
	tb.Helper()
	// The first start on a machine builds the binaries.
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Minute)
	defer cancel()
	c, err := Start(ctx, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Stop)
	return c
}
