package e2e_test

import (
	"fmt"
	"testing"
)

// TestRefusedObjectsFirstInTheLog has 3 MB of records that the receiver refuses first in a log on disk, six times what the
// backlog takes in memory, and good ones behind them. After a restart the good ones arrive, and those written then.
func TestRefusedObjectsFirstInTheLog(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	bad, good := newNamespace(t, "bad"), newNamespace(t, "good")
	hook := startTenantHook(t, bad)
	hook.away(true)
	text := fmt.Sprintf(`
stateDir: %q
sources:
  - {name: all, resources: [v1/configmaps], namespaces: {include: [%s, %s]}}
pipelines:
  - {name: spilled, sink: hook, backlog: {maxBytes: 512Ki}}
sinks:
  - {name: hook, webhook: {url: %q, batch: {maxRecords: 100}}}
`, t.TempDir(), bad, good, hook.server.URL)
	e := startExporter(t, plane(t).KubeconfigFile(), text, plain(t))
	e.WaitReady()
	writeMany(t, objectsIn(t, config, configMaps, bad), "bad", 1000, 0, data(noise(3000)))
	written := writeMany(t, objectsIn(t, config, configMaps, good), "good", 500, 0, data("taken"))
	eventually(t, wide, "the backlog is on disk", func() error {
		p := e.Status().Pipelines[0]
		if p.OnDisk == 0 || p.Waiting < uint64(1000+len(written)) {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	e.Kill()
	hook.away(false)
	e = startExporter(t, plane(t).KubeconfigFile(), text, plain(t))
	e.WaitReady()
	later := writeMany(t, objectsIn(t, config, configMaps, good), "late", 4*goodRate, goodRate, data("taken"))
	hook.expect(t, "what waited behind refused records", written)
	hook.expect(t, "what was written beside them", later)
	e.Kill() // what is refused waits: it would be tried again until the end of the grace period
}
