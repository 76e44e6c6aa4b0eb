package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedStandbyJoinsWhileMuchWaits starts a standby while a long log waits for one sink, and changes come for another: it is in sync in
// the end, and the memory of both is bounded. In the soak 1 GiB waits, 1,000 changes come each second, and the leader's p99 is within
// 50 ms of what it was alone, with the standby beside it too.
func TestExtendedStandbyJoinsWhileMuchWaits(t *testing.T) {
	disturbing(t)
	const size = 64 << 10
	waiting, rate, alone := int64(24<<20), 100, time.Second
	if soaking() {
		waiting, rate, alone = 1<<30, 1000, 20*time.Second
	}
	config := plane(t).Config()
	full, busy := newNamespace(t, "joinsfull"), newNamespace(t, "joinsbusy")
	gone, hook := webhooktest.Start(t), webhooktest.Start(t)
	gone.Use(webhooktest.Status(http.StatusServiceUnavailable))
	kinds := []load.Resource{load.ConfigMaps()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{busy}})
	r := newReplicas(t, full, fmt.Sprintf(`
sources:
  - {name: full, resources: [v1/configmaps], namespaces: {include: [%s]}}
  - {name: busy, resources: [v1/configmaps], namespaces: {include: [%s]}}
pipelines:
  - {name: full, sources: [full], sink: gone, backlog: {maxBytes: 8Mi, maxDiskBytes: 4Gi}}
  - {name: busy, sources: [busy], sink: hook}
sinks: [{name: gone, webhook: {url: %q}}, {name: hook, webhook: {url: %q}}]
`, full, busy, gone.URL(), hook.URL()))
	grantWatchTo(t, config, busy, full, "exporter")()
	r.adjust = append(r.adjust, plain(t))
	leaderAlone := r.Start()
	r.Leader()
	everywhere := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds)}) // the other one sees nothing of what only waits
	_, compactions := keepCompacting(t, 5*time.Second, everywhere.Passed)
	runLoad(t, config, load.Options{
		Resources: kinds, Namespaces: []string{full}, Objects: 64, Operations: int(waiting / size), Size: size, Seed: 54, Concurrency: 8,
	})
	eventually(t, 3*wide, "all of it waits", func() error {
		if n := leaderAlone.Metrics().sum("kubeferry_backlog_deltas", "pipeline=full"); n < float64(waiting/size) {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	logged := leaderAlone.Metrics().sum("kubeferry_log_bytes")
	t.Logf("%.0f bytes wait in the log", logged)
	if logged < 0.9*float64(waiting) { // they are compressed
		t.Errorf("%.0f bytes wait in the log, want %d", logged, waiting)
	}
	begunWriting := time.Now()
	writing := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{busy}, Objects: 200, Seed: 55, Rate: rate, Concurrency: 16})
	probes := startProbes(t, hook, busy)
	lasting(t, alone)
	before := probes.P99()
	if soaking() { // else the p99 is not judged, and on a busy machine it would not lead in time
		r.adjust = append(r.adjust, behindOthers)
	}
	standby := r.Start()
	begun := time.Now()
	memory := map[string]*anonymous{"leader": watchAnonymous(t, leaderAlone.exporter), "standby": watchAnonymous(t, standby.exporter)}
	eventually(t, 10*wide, "the standby is in sync", func() error {
		if code, body := standby.Get("/readyz"); code != http.StatusOK {
			return fmt.Errorf("%s", body)
		}
		return nil
	})
	took, during := time.Since(begun), probes.P99()
	lasting(t, alone)
	after := probes.P99()
	t.Logf("in sync after %v; p99 before %v, while the standby joins %v, after %v", took.Round(time.Millisecond), before, during, after)
	if soaking() && max(during, after) > before+50*time.Millisecond {
		t.Errorf("the leader's p99 is %v while a standby joins, and %v behind that; alone %v", during, after, before)
	}
	for name, m := range memory {
		peak := m.most.Load()
		t.Logf("%s: at most %d MiB of memory", name, peak>>20)
		if peak == 0 || peak > 200<<20 {
			t.Errorf("%s: at most %d MiB of memory, want at most 200", name, peak>>20)
		}
	}
	done := writing.End()
	made := float64(done.Created+done.Updated+done.Deleted) / time.Since(begunWriting).Seconds()
	t.Logf("%.0f changes/s", made)
	if soaking() && made < 0.9*float64(rate) {
		t.Errorf("%.0f changes/s, want %d", made, rate)
	}
	compactions()
	t.Log(expectAll(t, watched, done, hookReader(t, hook, cloudEvents), oracle.CompareOptions{Snapshot: oracle.SnapshotOptional, AllowEarlier: true}))

	leaderAlone.WaitStandbys(1)
	waits := leaderAlone.Metrics().sum("kubeferry_backlog_deltas", "pipeline=full")
	leaderAlone.Kill()
	r.Remove(leaderAlone)
	r.Leader()
	if restored := standby.Metrics().sum("kubeferry_deltas_restored_total", "pipeline=full"); restored != waits {
		t.Errorf("%v restored, want %v", restored, waits)
	}
	standby.Kill() // else it drains
}

// behindOthers gives a program only the time that no other one uses, as if it ran on another node.
func behindOthers(o *process.Options) {
	o.Args = slices.Concat([]string{"-n", "19", o.Path}, o.Args)
	o.Path = "nice"
}

// anonymous is the memory of a process without the pages of files: the state file is mapped, and what was read of it stays
// resident as long as nothing else needs the room.
type anonymous struct{ most atomic.Int64 }

func watchAnonymous(tb testing.TB, e *exporter) *anonymous {
	tb.Helper()
	a, beats := &anonymous{}, 0
	startPulse(tb, func() {
		if beats++; beats%20 != 0 {
			return
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.process.Pid()))
		if err != nil {
			return // it has ended
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
				kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
				if err != nil {
					tb.Error(err)
				}
				a.most.Store(max(a.most.Load(), kilobytes<<10))
			}
		}
	})
	return a
}

// probes change an object again and again, and measure until each change arrives.
type probes struct {
	tb   testing.TB
	hook *webhooktest.Receiver
	sent chan map[string]time.Time // by resource version; holds one
	from int                       // of the requests that P99 has not seen
}

func startProbes(tb testing.TB, hook *webhooktest.Receiver, namespace string) *probes {
	tb.Helper()
	maps := objectsIn(tb, plane(tb).Config(), configMaps, namespace)
	maps.Create("probe", data("0"))
	p := &probes{tb: tb, hook: hook, sent: make(chan map[string]time.Time, 1)}
	p.sent <- map[string]time.Time{}
	ticker := time.NewTicker(20 * time.Millisecond)
	stop, done := make(chan struct{}), make(chan struct{})
	tb.Cleanup(func() {
		close(stop)
		<-done
		ticker.Stop()
	})
	go func() {
		defer close(done)
		for n := 1; ; n++ {
			select {
			case <-ticker.C:
			case <-stop:
				return
			}
			begun := time.Now()
			patch := fmt.Sprintf(`{"data": {"value": "%d"}}`, n)
			patched, err := maps.client.Patch(context.WithoutCancel(tb.Context()), "probe", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			if err != nil {
				tb.Error(err)
				return
			}
			sent := <-p.sent
			sent[patched.GetResourceVersion()] = begun
			p.sent <- sent
		}
	}()
	return p
}

// P99 is that of the probes that have arrived since the last call, of which there must be some.
func (p *probes) P99() time.Duration {
	p.tb.Helper()
	var all []time.Duration
	var requests []webhooktest.Request
	eventually(p.tb, wide, "probes arrive", func() error {
		sent := <-p.sent
		defer func() { p.sent <- sent }()
		all, requests = nil, p.hook.Requests()
		for _, request := range requests[p.from:] {
			for _, record := range request.Records {
				parts := strings.Split(record.ID, "/")
				if begun, ok := sent[parts[max(0, len(parts)-2)]]; ok {
					all = append(all, request.Time.Sub(begun))
				}
			}
		}
		if len(all) < 20 {
			return fmt.Errorf("%d", len(all))
		}
		return nil
	})
	p.from = len(requests)
	slices.Sort(all)
	return all[len(all)*99/100].Round(time.Millisecond)
}
