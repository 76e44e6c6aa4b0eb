package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/opensearchtest"
)

// shared is the control plane of the tests that leave it as it is, and of those that run when nothing else does.
var shared *controlplane.ControlPlane

// rough holds the control planes that no test disturbs now; nil is one that is not started yet.
var rough = make(chan *controlplane.ControlPlane, 2)

// disturbed has the control planes of the tests that call disturbing, by their names.
var disturbed sync.Map

// places bounds how many tests run beside each other. Most of them wait most of the time.
var places = make(chan struct{}, 4)

func TestMain(m *testing.M) {
	flag.Parse()
	assets.Must(controlplane.Prepare, kafkatest.Prepare, programs.Exporter().Build, programs.RaceExporter().Build)
	if assets.Selected("TestExtendedOpenSearch") {
		assets.Must(opensearchtest.Prepare)
	}
	var err error
	if shared, err = controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := flag.Set("test.parallel", "1000"); err != nil { // beside and disturbing bound it
		panic(err)
	}
	for range cap(rough) {
		rough <- nil
	}
	code := m.Run()
	shared.Stop()
	for range cap(rough) {
		if own := <-rough; own != nil {
			own.Stop()
		}
	}
	os.Exit(code)
}

// beside lets a test run beside others, once there is a place for it.
func beside(t *testing.T) {
	t.Helper()
	t.Parallel()
	begun := time.Now()
	places <- struct{}{}
	t.Cleanup(func() { <-places })
	t.Logf("waited %v for a place", time.Since(begun).Round(time.Millisecond))
}

// disturbing lets a test run beside others with a control plane that it may disturb, or whose objects it reads all, and waits
// for its turn with it.
func disturbing(t *testing.T) {
	t.Helper()
	t.Parallel()
	begun := time.Now()
	own := <-rough
	t.Cleanup(func() { rough <- own })
	t.Logf("waited %v for its turn", time.Since(begun).Round(time.Millisecond))
	if own == nil {
		var err error
		if own, err = controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	disturbed.Store(t.Name(), own)
}

// plane returns the control plane of a test.
func plane(tb testing.TB) *controlplane.ControlPlane {
	name, _, _ := strings.Cut(tb.Name(), "/")
	if own, ok := disturbed.Load(name); ok {
		return own.(*controlplane.ControlPlane)
	}
	return shared
}

// raceBinary is the path of kubeferry with the race detector.
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

// eventually calls condition until it returns no error, for at most d on a machine that is not busy. A condition that takes long is
// called less often: else the wait itself would take the time of what it waits for.
func eventually(tb testing.TB, d time.Duration, what string, condition func() error) {
	tb.Helper()
	begun := time.Now()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	var late processorTimes // when d was over
	for {
		called := time.Now()
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-time.After(min(max(pollInterval, 4*time.Since(called)), time.Second)):
		case <-deadline.C:
			now := ownProcesses(tb)
			if late == (processorTimes{}) {
				late = now // and from here on it shows how busy the machine is
			} else if took := time.Since(begun); took >= now.since(late).slowed(d) {
				tb.Fatalf("%s: not within %v: %v", what, took, err)
			}
			deadline.Reset(d / 4)
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
