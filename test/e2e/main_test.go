package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

// shared is the control plane that the tests share.
var shared *controlplane.ControlPlane

func TestMain(m *testing.M) {
	assets.Must(controlplane.Prepare, kafkatest.Prepare, programs.Exporter().Build, programs.RaceExporter().Build)
	var err error
	if shared, err = controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := flag.Set("test.parallel", "3"); err != nil { // most tests that may run side by side wait most of the time
		panic(err)
	}
	code := m.Run()
	shared.Stop()
	os.Exit(code)
}

func plane(testing.TB) *controlplane.ControlPlane { return shared }

// raceBinary is the path of the exporter with the race detector.
func raceBinary(tb testing.TB) string {
	tb.Helper()
	path, err := programs.RaceExporter().Path()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// pollInterval is the shortest time between two calls of a condition.
const pollInterval = 25 * time.Millisecond

// eventually calls condition until it returns no error, for at most d. A condition that takes long is called less often:
// else the wait itself would take the time of what it waits for.
func eventually(tb testing.TB, d time.Duration, what string, condition func() error) {
	tb.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	for {
		begun := time.Now()
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-time.After(min(max(pollInterval, 4*time.Since(begun)), time.Second)):
		case <-deadline.C:
			tb.Fatalf("%s: not within %v: %v", what, d, err)
		case <-tb.Context().Done():
			tb.Fatalf("%s: %v: %v", what, tb.Context().Err(), err)
		}
	}
}

// within returns a context that ends after d, with the test at the latest.
func within(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}

// lasting returns when a fault has lasted for d.
func lasting(tb testing.TB, d time.Duration) {
	tb.Helper()
	select {
	case <-time.After(d):
	case <-tb.Context().Done():
		tb.Fatal(tb.Context().Err())
	}
}
