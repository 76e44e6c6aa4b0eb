package e2e_test

import (
	"fmt"
	"testing"
)

// TestExtendedRefusedObjectsFirstInTheLog has 3 MB of records that the receiver refuses first in a log on disk, six times what the
// backlog takes in memory, and good ones behind them. After a restart the good ones arrive, and those written then.
func TestExtendedRefusedObjectsFirstInTheLog(t *testing.T) {
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

// TestExtendedTooManyRefusedObjects has a tenant make more objects whose records the receiver refuses than are kept in memory. kubeferry stays
// below the memory limit of deploy/base, also after a restart, and what others change arrives. The soak has 600,000 such objects.
func TestExtendedTooManyRefusedObjects(t *testing.T) {
	beside(t)
	count := 11_000 // a namespace of which 10,000 objects fail is left behind in the log
	if soaking() {
		count = 600_000
	}
	config := plane(t).Config()
	bad, good := newNamespace(t, "bad"), newNamespace(t, "good")
	emptied(t, bad)
	hook, alone := startTenantHook(t, bad), startTenantHook(t, bad)
	base := baseConfig(t, "nats://none:4222", t.TempDir())
	pipeline := base.content["pipelines"].([]any)[0].(map[string]any)
	only := map[string]any{"namespaces": map[string]any{"include": []any{good}}}
	pipeline["sources"], pipeline["sink"] = []any{"s"}, "hook"
	base.content["pipelines"] = []any{pipeline, map[string]any{"name": "alone", "sink": "alone", "filters": []any{only}}}
	base.content["sources"] = []any{map[string]any{"name": "s", "resources": []any{"v1/configmaps"}, "namespaces": map[string]any{"include": []any{bad, good}}}}
	base.content["cluster"] = clusterName
	base.content["sinks"] = []any{
		map[string]any{"name": "hook", "webhook": map[string]any{"url": hook.server.URL, "batch": map[string]any{"maxRecords": 100}}},
		map[string]any{"name": "alone", "webhook": map[string]any{"url": alone.server.URL}},
	}
	e := base.run(t)
	e.WaitReady()
	memory := watchAnonymous(t, e)
	writeMany(t, objectsIn(t, config, configMaps, bad), "bad", count, 0, data("refused"))
	in := objectsIn(t, config, configMaps, good)
	expect := func(prefix string) {
		t.Helper()
		written := writeMany(t, in, prefix, 4*goodRate, goodRate, data("taken"))
		if soaking() { // the log is searched first
			hook.expect(t, prefix, written)
		} else {
			expectSoon(t, e, written, alone, map[string]*tenantHook{"hook": hook})
		}
		if p := e.Status().Pipelines[0]; p.Waiting < uint64(count) {
			t.Errorf("%d changes wait, want at least %d", p.Waiting, count)
		}
		t.Logf("%s: at most %d of %d MiB", prefix, memory.most.Load()>>20, base.limit>>20)
		if most := memory.most.Load(); most == 0 || most >= base.limit {
			t.Errorf("kubeferry took %d MiB, its limit is %d MiB", most>>20, base.limit>>20)
		}
	}
	expect("beside")
	e.Kill()
	e = base.run(t)
	memory = watchAnonymous(t, e)
	e.WaitReady()
	expect("later")
	e.Kill() // what is refused waits: it would be tried again until the end of the grace period
}
