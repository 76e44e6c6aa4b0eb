package controlplane

import "testing"

// ForTest starts a control plane that ends with the test. A package with many tests had better start one in TestMain.
func ForTest(tb testing.TB, opts Options) *ControlPlane {
	tb.Helper()
	c, err := Start(tb.Context(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Stop)
	return c
}
