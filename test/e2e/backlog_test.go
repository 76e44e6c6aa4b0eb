package e2e_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestBacklogBlocksTheWatch fills a small backlog before a dead sink: the watch is held back instead of the memory
// filled, the probes answer, and what was held back arrives later.
func TestBacklogBlocksTheWatch(t *testing.T) {
	disturbing(t)
	const bound, size = 512 << 10, 24 << 10
	config := plane(t).Config()
	namespace := newNamespace(t, "backlog")
	hook := webhooktest.Start(t)
	kinds := []load.Resource{load.ConfigMaps(), load.Events()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps, v1/events], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook, backlog: {maxBytes: 512Ki}}]
sinks: [{name: hook, webhook: {url: %q, batch: {maxRecords: 20}}}]
shutdown: {grace: 2s}
`, namespace, hook.URL()))
	e.WaitReady()
	opts := load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 60, Operations: 100, Size: size, Seed: 7, Concurrency: 8}
	runLoad(t, config, opts) // warm
	e.WaitSettled(wide)
	before := e.Metrics().sum("process_resident_memory_bytes")

	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	opts.Operations, opts.Seed = 500, 8 // 12 MiB
	done := runLoad(t, config, opts)
	var m metrics
	held := func() float64 { return m.sum("kubeferry_backlog_bytes", "pipeline=p") }
	eventually(t, wide, "both watches are blocked by a full backlog", func() error { // a busy machine blocks them too
		for _, w := range e.Status().Watches {
			if !w.Blocked {
				return fmt.Errorf("%+v", w)
			}
		}
		if m = e.Metrics(); held() < bound/2 {
			return fmt.Errorf("the backlog holds %v bytes", held())
		}
		return nil
	})
	if got := held(); got > bound {
		t.Errorf("the backlog holds %v bytes, its bound is %v", got, bound)
	}
	grown := m.sum("process_resident_memory_bytes") - before
	t.Logf("resident memory grew by %.1f MiB", grown/(1<<20))
	if held := m.sum("kubeferry_deltas_received_total", "pipeline=p") - m.sum("kubeferry_records_delivered_total", "pipeline=p"); held > bound/size {
		t.Errorf("it took %v changes of %d bytes", held, size)
	}
	if grown > 48<<20 {
		t.Errorf("resident memory grew by %.1f MiB", grown/(1<<20))
	}
	e.AnswersSoon(time.Second, "/healthz", "/livez", "/readyz", "/status", "/metrics")
	e.checkLedgers()

	// A second kubeferry, just as blocked, ends in time.
	t.Run("SIGTERM", func(t *testing.T) {
		dead := webhooktest.Start(t)
		dead.Use(webhooktest.Always(webhooktest.Answer{Hang: true}))
		e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps, v1/events], namespaces: {include: ["%s*"]}}]
pipelines: [{name: p, sink: hook, backlog: {maxBytes: 64Ki}}]
sinks: [{name: hook, webhook: {url: %q, timeout: 60s}}]
shutdown: {grace: 2s}
`, namespace, dead.URL()))
		e.leaves = true
		e.WaitReady() // a full backlog keeps it from reading on; that is not its fault
		eventually(t, wide, "a watch is blocked", func() error {
			if s := e.Status(); !s.Watches[0].Blocked && !s.Watches[1].Blocked {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		most, pulse, started := e.Slowed(8*time.Second), startPulse(t, nil), time.Now()
		e.Stop()
		ended := time.Now()
		if took := ended.Sub(started); took < 1500*time.Millisecond || took-pulse.Stalled(started, ended) > most {
			t.Errorf("ended %v after SIGTERM, with a grace period of 2 s; want at most %v", took, most)
		}
		if n := len(e.Logged("stopping with changes that were not delivered")); n != 1 {
			t.Errorf("the log says %d times what was left", n)
		}
	})

	hook.Use(webhooktest.Accept())
	e.WaitSettled(2 * wide) // first: judging is dear
	read := hookReader(t, hook, cloudEvents)
	report := expectAll(t, watched, done, read, oracle.CompareOptions{AllowGaps: true})
	e.WaitSettled(wide)
	t.Log(report)
	expectState(t, config, read(), load.GVRs(kinds), namespace)
}
