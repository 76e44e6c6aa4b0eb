package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedBacklogFillsItsDisk has a pipeline whose sink is gone reach backlog.maxDiskBytes: the log stays near the bound, the
// source waits, with it the other pipeline on it, and the probes answer. Everything arrives at both once the sink is back.
func TestExtendedBacklogFillsItsDisk(t *testing.T) {
	beside(t)
	const bound, memory = 1 << 20, 256 << 10
	config := plane(t).Config()
	namespace := newNamespace(t, "diskbound")
	gone, well := webhooktest.Start(t), webhooktest.Start(t)
	kinds := []load.Resource{load.ConfigMaps()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines:
  - {name: gone, sink: gone, backlog: {maxBytes: 256Ki, maxDiskBytes: 1Mi}}
  - {name: well, sink: well, backlog: {maxBytes: 256Ki, maxDiskBytes: 1Mi}}
sinks: # a busy machine is not to repeat anything
  - {name: gone, webhook: {url: %q, timeout: 60s, batch: {maxRecords: 20}}}
  - {name: well, webhook: {url: %q, timeout: 60s, batch: {maxRecords: 20}}}
`, t.TempDir(), namespace, gone.URL(), well.URL()))
	e.WaitReady()
	gone.Use(webhooktest.Status(http.StatusServiceUnavailable))
	opts := load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 60, Operations: 500, Size: 12 << 10, Seed: 54, Concurrency: 8}
	done := runLoad(t, config, opts) // 6 MiB
	logged := func() float64 { return e.Metrics().sum("kubeferry_log_bytes", "pipeline=gone") }
	eventually(t, wide, "the source waits for the disk", func() error { // and not for a commit that is slow
		s, size := e.Status(), logged()
		if !s.Watches[0].Blocked || size < bound/2 {
			return fmt.Errorf("%v bytes, %+v", size, s.Watches[0])
		}
		return nil
	})
	lasting(t, 2*commitInterval)
	size := logged()
	t.Logf("the log takes %.0f bytes of %d", size, bound)
	// What is in memory is in the log too, and counts only once it is written: the bound may be passed by that.
	if size > bound+memory+64<<10 {
		t.Errorf("the log takes %.0f bytes, its bound is %d", size, bound)
	}
	for _, path := range []string{"/healthz", "/readyz", "/status", "/metrics"} {
		if code, body := e.Get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	e.checkLedgers()

	gone.Use(webhooktest.Accept())
	e.WaitSettled(2 * wide)
	for name, hook := range map[string]*webhooktest.Receiver{"gone": gone, "well": well} {
		report := expectAll(t, watched, done, hookReader(t, hook, cloudEvents), oracle.CompareOptions{})
		t.Log(name, report)
		if len(report.Duplicates) > 0 {
			t.Errorf("%s: repeated: %v", name, report.Duplicates)
		}
	}
	eventually(t, wide, "the log is empty", func() error {
		if size := e.Metrics().sum("kubeferry_log_bytes"); size != 0 {
			return fmt.Errorf("%v bytes", size)
		}
		return nil
	})
}
