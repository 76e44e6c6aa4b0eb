package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestShutdownKeepsWhatIsLeft stops kubeferry while its sink is dead, and starts it again: nothing is lost, and
// nothing that was acknowledged is repeated.
func TestShutdownKeepsWhatIsLeft(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "term")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	text := fmt.Sprintf("stateDir: %q\nshutdown: {grace: 1s}\n", t.TempDir()) +
		hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	opts := load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 20, Operations: 100, Seed: 13}
	all := runLoad(t, config, opts)
	e.WaitSettled(wide)
	hook.Use(webhooktest.Status(http.StatusInternalServerError))
	opts.Operations, opts.Seed = 100, 14
	more := runLoad(t, config, opts)
	all.UIDs = append(all.UIDs, more.UIDs...)
	e.WaitWaiting(wide, 10)
	e.Stop()
	e.WaitLogged(wide, "the next start goes on with it")
	hook.Use(webhooktest.Accept())

	e = startExporter(t, plane(t).KubeconfigFile(), text)
	report := expectAll(t, watched, all, hookReader(t, hook, cloudEvents), oracle.CompareOptions{})
	if len(report.Duplicates) > 0 {
		t.Errorf("repeated: %v", report.Duplicates)
	}
	if restored := e.Metrics().sum("kubeferry_deltas_restored_total"); restored < 10 {
		t.Errorf("%v restored", restored)
	}
}

// TestSecondSignal sends SIGTERM while the sink hangs, so that kubeferry would drain for the whole grace period, and
// sends it again: kubeferry ends at once, by the signal, and the next start delivers everything.
func TestSecondSignal(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "twice")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	const underWay = 2 * 5 // what the configuration allows
	dir := t.TempDir()
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q, timeout: 5m, batch: {maxRecords: 5}, concurrency: 2}}]
shutdown: {grace: 5m}
`, dir, namespace, hook.URL())
	runs := []*commits{watchCommits(t, dir)}
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	opts := load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 20, Operations: 100, Seed: 17}
	all := runLoad(t, config, opts)
	e.WaitSettled(wide)
	hook.Use(webhooktest.Always(webhooktest.Answer{Hang: true}))
	opts.Operations, opts.Seed = 200, 18
	more := runLoad(t, config, opts)
	all.UIDs = append(all.UIDs, more.UIDs...)
	e.WaitWaiting(wide, 50)
	e.checkLedgers()

	e.ended = true // it does not end as Stop expects
	t.Cleanup(e.process.Kill)
	e.process.Signal(syscall.SIGTERM)
	e.WaitLogged(wide, "stopping")
	e.WaitWaiting(wide, 50) // it drains, and still answers
	select {
	case <-e.process.Done():
		t.Fatalf("it ended while its sink hung and the grace period lasted: %v", e.process.Wait())
	default:
	}
	again := time.Now()
	eventually(t, wide, "the second signal ends it", func() error {
		// More than once: between its log line and the moment in which a second signal counts is no time, but some.
		e.process.Signal(syscall.SIGTERM)
		select {
		case <-e.process.Done():
			return nil
		default:
			return errors.New("it is still there")
		}
	})
	t.Logf("ended %v after the second signal", time.Since(again))
	var exit *exec.ExitError
	if err := e.process.Wait(); !errors.As(err, &exit) {
		t.Errorf("it ended with %v, want by the signal", err)
	} else if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v, want by the signal", err)
	}
	runs[0].End()
	e.checkLog()
	if len(e.Logged("stopped")) > 0 {
		t.Error("it says that it stopped in good order")
	}

	hook.Use(webhooktest.Accept())
	runs = append(runs, watchCommits(t, dir))
	e = startExporter(t, plane(t).KubeconfigFile(), text)
	report := expectAll(t, watched, all, hookReader(t, hook, cloudEvents), oracle.CompareOptions{Snapshot: oracle.SnapshotForbidden})
	t.Log(report)
	e.WaitWaiting(wide, 0)
	runs[1].End()
	expectFewRepeats(t, "webhook", hookArrivals(hook), runs, underWay)
	if restored := e.Metrics().sum("kubeferry_deltas_restored_total"); restored < 50 {
		t.Errorf("%v restored", restored)
	}
}
