package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedClockSetBack starts kubeferry on a state that was written, as it seems, six hours from now: nothing is held
// back until then, no age is negative, and order and delivery hold.
//
// The clock of the machine that runs tests is not a test's to set, a time namespace does not move it, and a static Go
// program reads the kernel's clock without any library that could be replaced. So the state is moved instead, which is what a clock set
// back between two runs looks like. Within a run Go's durations come from the monotonic clock.
func TestExtendedClockSetBack(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "clock")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	dir := t.TempDir()
	text := fmt.Sprintf("stateDir: %q\n", dir) +
		hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	opts := load.Options{Resources: kinds, Namespaces: []string{namespace}, Operations: 100, Seed: 40}
	all := runLoad(t, config, opts)
	e.WaitSettled(wide)
	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	opts.Operations, opts.Seed = 300, 41
	more := runLoad(t, config, opts)
	all.UIDs = append(all.UIDs, more.UIDs...)
	e.WaitWaiting(wide, 200)
	eventually(t, wide, "the log holds what waits", func() error {
		if bytes := e.Metrics().sum("kubeferry_log_bytes"); bytes < 100<<10 {
			return fmt.Errorf("log_bytes is %v", bytes)
		}
		return nil
	})
	e.Kill()
	if moved := moveLog(t, dir, "p", 6*time.Hour); moved < 100 {
		t.Fatalf("the log holds %d entries", moved)
	}

	e = startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	e.WaitSink(wide, "p", false)
	opts.Operations, opts.Seed = 100, 42
	more = runLoad(t, config, opts)
	all.UIDs = append(all.UIDs, more.UIDs...)
	if age := e.Metrics().sum("kubeferry_oldest_unsettled_seconds"); age < 0 {
		t.Errorf("oldest_unsettled_seconds is %v", age)
	}
	hook.Use(webhooktest.Accept())
	report := expectAll(t, watched, all, hookReader(t, hook, cloudEvents), oracle.CompareOptions{})
	t.Log(report)
	e.WaitWaiting(wide, 0)
	m := e.Metrics()
	if age := m.sum("kubeferry_oldest_unsettled_seconds"); age != 0 {
		t.Errorf("oldest_unsettled_seconds is %v with nothing unsettled", age)
	}
	if sum := m.sum("kubeferry_delivery_seconds_sum"); sum < 0 {
		t.Errorf("the deliveries took %v s in all", sum)
	}
	if code, body := e.Get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
}

// readLog returns the entries of a pipeline's log, flow by flow.
func readLog(tb testing.TB, store *checkpoint.Store, pipeline string) (entries []delta.Entry) {
	tb.Helper()
	flows, err := store.Flows(pipeline)
	for _, flow := range flows {
		of, _, failed := store.ReadFlow(pipeline, flow, 0, 1<<62)
		entries, err = append(entries, of...), errors.Join(err, failed)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return entries
}

// moveLog moves the times in a pipeline's log, and returns the number of its entries.
func moveLog(tb testing.TB, dir, pipeline string, by time.Duration) int {
	tb.Helper()
	store, err := checkpoint.Open(dir, func(message string, err error) { tb.Errorf("%s: %v", message, err) })
	if err != nil {
		tb.Fatal(err)
	}
	entries := readLog(tb, store, pipeline)
	for i := range entries {
		e := &entries[i]
		if e.Delta != nil {
			e.Delta.Observed = e.Delta.Observed.Add(by)
		}
		if e.Gap != nil {
			e.Gap.Observed = e.Gap.Observed.Add(by)
		}
		if !e.Failed.IsZero() {
			e.Failed = e.Failed.Add(by)
		}
	}
	change := delta.LogChange{Pipeline: pipeline, Append: entries}
	if err := store.Commit(&checkpoint.Commit{Logs: []delta.LogChange{change}}); err != nil {
		tb.Fatal(err)
	}
	if err := store.Close(); err != nil {
		tb.Fatal(err)
	}
	return len(entries)
}
