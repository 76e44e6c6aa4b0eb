package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestEventsThatExpire cuts the watch of Events among the DELETEDs of one etcd transaction, which have one resource version. All arrive,
// each once: from the next watch, or from the next run if the exporter is killed behind the commit that has the first of them.
func TestEventsThatExpire(t *testing.T) {
	const count, cut = 300, 50
	for name, killed := range map[string]bool{"the watch is cut": false, "and the exporter killed": true} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			c := controlplane.ForTest(t, controlplane.Options{APIServerFlags: []string{"--event-ttl=20s"}})
			gateway, kubeconfig := gatewayOf(t, c.Config())
			hook := webhooktest.Start(t)
			dir := t.TempDir()
			text := fmt.Sprintf("stateDir: %q\n", dir) + hookConfig("[v1/events]", "{include: [default]}", hook.URL())
			e := startExporter(t, kubeconfig, text)
			e.WaitReady()
			read := hookReader(t, hook, cloudEvents)
			objects := objectsIn(t, c.Config(), events, "default")
			var creating sync.WaitGroup
			for worker := range 10 {
				creating.Go(func() {
					for n := range count / 10 {
						objects.Create(fmt.Sprintf("expires-%d-%d", worker, n), map[string]any{
							"involvedObject": map[string]any{"kind": "Namespace", "name": "default", "namespace": "default"}, "reason": "Test", "type": "Normal",
						})
					}
				})
			}
			creating.Wait()
			of := func(typ string) []oracle.Record {
				return slices.DeleteFunc(slices.Clone(read()), func(r oracle.Record) bool {
					return r.Type != typ || len(r.Name) < 8 || r.Name[:8] != "expires-"
				})
			}
			arrive := func(typ string, least int) {
				t.Helper()
				eventually(t, 3*wide, "records arrive", func() error {
					names := map[string]bool{} // what was not committed before a kill comes again
					for _, r := range of(typ) {
						names[r.Name] = true
					}
					if len(names) < least {
						return fmt.Errorf("%d %s, want %d", len(names), typ, least)
					}
					return nil
				})
			}
			arrive("ADDED", count)
			var watches atomic.Int32
			gateway.Use(func(r *http.Request) *proxy.Fault {
				switch {
				case !isWatch(r.URL.Path, r.URL.Query(), "events"):
					return nil
				case watches.Add(1) == 1:
					return &proxy.Fault{After: cut, Cut: true}
				case killed:
					return &proxy.Fault{Code: http.StatusServiceUnavailable}
				}
				return nil
			})
			gateway.Cut()
			if killed {
				arrive("DELETED", cut/2)
				eventually(t, wide, "the watch is cut", func() error {
					if n := watches.Load(); n < 2 {
						return fmt.Errorf("%d watches", n)
					}
					return nil
				})
				e.WaitSettled(wide)
				e.Kill()
				if n := len(of("DELETED")); n >= count {
					t.Fatalf("all %d DELETEDs came before the kill", n)
				}
				gateway.Use(nil)
				e = startExporter(t, kubeconfig, text)
			}
			arrive("DELETED", count)
			e.WaitSettled(wide)
			deleted, versions := map[string]int{}, map[string]bool{}
			for _, r := range of("DELETED") {
				deleted[r.Name]++
				versions[r.ResourceVersion] = true
				if r.Inferred {
					t.Errorf("inferred: %+v", r)
				}
			}
			twice := len(of("DELETED")) - len(deleted) // what was not committed before the kill comes again
			t.Logf("%d DELETEDs of %d versions, %d of them twice, %d watches", len(deleted), len(versions), twice, watches.Load())
			for name, n := range deleted {
				if n > 1 && !killed {
					t.Errorf("%d DELETEDs of %s", n, name)
				}
			}
			if len(deleted) != count {
				t.Errorf("%d objects have a DELETED, want %d", len(deleted), count)
			}
			if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 0 {
				t.Errorf("%v gaps", gaps)
			}
		})
	}
}
