package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestSinkGoneForTheWholeLoad lets backlogs far beyond their memory pile up before sinks that are gone, kills kubeferry
// meanwhile, and has etcd compacted again and again: with spill every single change arrives, memory stays small, and
// JetStream stores nothing twice. There are no snapshots: one that the kill interrupts would begin anew.
func TestSinkGoneForTheWholeLoad(t *testing.T) {
	disturbing(t)
	l := goneLoad{operations: 1500, rate: 250, size: 8 << 10, bound: 2 << 20, every: 500 * time.Millisecond}
	if soaking() {
		l = goneLoad{operations: 20000, size: 2 << 10, bound: 8 << 20, every: 5 * time.Second}
	}
	t.Run("webhook", func(t *testing.T) {
		hook := webhooktest.Start(t)
		way := proxy.NewTCP(t, strings.TrimPrefix(hook.URL(), "http://"))
		sinksGone(t, l, goneSink{
			name:   "hook",
			config: fmt.Sprintf("webhook: {url: %q, batch: {maxRecords: 50}}", "http://"+way.Addr()),
			back:   way.Come,
			read:   hookReader(t, hook, cloudEvents), once: true,
		})
	})
	t.Run("JetStream and Kafka", func(t *testing.T) {
		bus, broker := natstest.Start(t, nil), kafkatest.Start(t)
		broker.CreateTopic("gone", 3)
		bus.Stop()
		broker.Stop()
		jetstream := fmt.Sprintf(`nats: {urls: [%q], subject: "k8s.{group}.{resource}.{namespace}.{name}", stream: {name: GONE, create: true}}`, bus.URL())
		l := l
		l.operations, l.every = l.operations/3, l.every/2
		sinksGone(t, l,
			goneSink{name: "jetstream", config: jetstream, back: bus.Restart, read: streamReader(t, bus, "GONE"), once: true},
			goneSink{
				name: "kafka", config: fmt.Sprintf("kafka: {brokers: [%q], topic: gone}", broker.Addr()), back: broker.Restart,
				read: topicReader(t, broker, cloudEvents, "gone"),
			})
	})
}

// goneLoad is what piles up before sinks that are gone.
type goneLoad struct {
	operations, rate, size int
	bound                  int           // backlog.maxBytes
	every                  time.Duration // between compactions: short enough for several during the load
}

// goneSink is a sink that is away until back.
type goneSink struct {
	name, config string
	back         func()
	read         reader
	once         bool // nothing may arrive twice
}

func sinksGone(t *testing.T, l goneLoad, gone ...goneSink) {
	config := plane(t).Config()
	namespace := newNamespace(t, "spill")
	kinds := []load.Resource{load.ConfigMaps()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	var pipelines, sinks strings.Builder
	for _, g := range gone {
		_, _ = fmt.Fprintf(&pipelines, "  - {name: %[1]s, sink: %[1]s, backlog: {maxBytes: %[2]d}}\n", g.name, l.bound)
		_, _ = fmt.Fprintf(&sinks, "  - {name: %s, %s}\n", g.name, g.config)
	}
	dir := t.TempDir()
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}, snapshot: never}]
pipelines:
%ssinks:
%s`, dir, namespace, &pipelines, &sinks)
	fast := plain(t)
	e := startExporter(t, plane(t).KubeconfigFile(), text, fast)
	e.WaitReady()

	var writes atomic.Int64
	half := make(chan struct{})
	var result *load.Result
	over := make(chan struct{})
	go func() {
		defer close(over)
		var err error
		result, err = load.Run(t.Context(), config, load.Options{
			Resources: kinds, Namespaces: []string{namespace}, Objects: 100, Seed: 10, Concurrency: 8,
			Operations: l.operations, Rate: l.rate, Size: l.size,
			OnWrite: func(int64) {
				if writes.Add(1) == int64(l.operations)/2 {
					close(half)
				}
			},
		})
		if err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { <-over })
	_, compactions := keepCompacting(t, l.every, watched.Passed)
	memory := func(e *exporter) *memoryBound {
		return &memoryBound{e: e, dir: dir, bytes: float64(l.bound), largest: 2 * float64(l.size), samples: map[string][]memorySample{}}
	}
	memory(e).Until(half)
	before := peakRSS(t, e)
	e.Kill()
	e = startExporter(t, plane(t).KubeconfigFile(), text, fast)
	memory(e).Until(over)
	if n := compactions(); n < 2 {
		t.Errorf("etcd was compacted %d times during the load, want at least twice", n)
	} else {
		t.Logf("etcd was compacted %d times", n)
	}
	if result == nil {
		t.FailNow()
	}
	e.WaitWaiting(3*wide, uint64(l.operations)*9/10)
	for _, g := range gone {
		eventually(t, wide, g.name+": what does not fit in memory is in the log only", func() error {
			if held := e.Metrics().sum("kubeferry_backlog_bytes", "pipeline="+g.name); held > float64(l.bound) {
				return fmt.Errorf("%v bytes in memory", held)
			}
			return nil
		})
		if disk := e.Metrics().sum("kubeferry_log_bytes", "pipeline="+g.name); disk < 1<<20 {
			t.Errorf("%s: log_bytes is %v", g.name, disk)
		}
	}
	e.checkLedgers()
	for _, g := range gone {
		g.back()
	}
	if err := watched.WaitCaughtUp(within(t, 2*wide), result.UIDs...); err != nil {
		t.Fatal(err)
	}
	e.WaitWaiting(6*wide, 0)
	for _, g := range gone {
		report, err := watched.WaitDelivered(within(t, wide), g.read, oracle.CompareOptions{})
		t.Log(g.name, ": ", report)
		if err != nil || !report.OK() {
			t.Errorf("%s: %v, %v", g.name, report, err)
		}
		if g.once && len(report.Duplicates) > 0 {
			t.Errorf("%s: %d records arrived again, although none was acknowledged before the kill", g.name, len(report.Duplicates))
		}
	}
	if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 0 {
		t.Errorf("%v gaps", gaps)
	}
	peak := max(before, peakRSS(t, e))
	t.Logf("peak RSS %d MiB", peak>>20)
	if peak > 200<<20 {
		t.Errorf("peak RSS %d MiB, want at most 200", peak>>20)
	}
}

// keepCompacting compacts etcd again and again, until end is called. That returns how often it did, as count does meanwhile. What
// happened in the last second is spared, and what is not passed: it is the history that the API server itself, or a watch of
// etcd, may not have read yet. Without it, the API server's watch cache would begin anew and refuse what is due. passed is where an
// oracle's watches of the same kinds are; nil where a refusal is wanted.
func keepCompacting(tb testing.TB, every time.Duration, passed func() uint64) (count, end func() int) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	var times atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		type reading struct {
			revision uint64
			at       time.Time
		}
		var readings []reading
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			var next reading
			text, err := plane(tb).EtcdRevision(ctx)
			if err == nil {
				next.revision, err = strconv.ParseUint(text, 10, 64)
			}
			next.at = time.Now()
			readings = append(readings, next)
			for err == nil && len(readings) > 0 && time.Since(readings[0].at) >= time.Second && (passed == nil || passed() >= readings[0].revision) {
				if err = plane(tb).CompactEtcdTo(ctx, strconv.FormatUint(readings[0].revision, 10)); err == nil {
					times.Add(1)
				}
				readings = readings[1:]
			}
			if err != nil && ctx.Err() == nil {
				tb.Error(err)
			}
		}
	}()
	count = func() int { return int(times.Load()) }
	end = func() int {
		cancel()
		<-ended
		return count()
	}
	tb.Cleanup(func() { end() })
	return count, end
}

// memoryBound looks at the memory of pipelines that spill. Beside backlog.maxBytes they hold what the next commit is to
// write to the log: no more than what has come since the commit before the last.
type memoryBound struct {
	e       *exporter
	dir     string
	bytes   float64
	largest float64 // object of the load, with what the API server adds
	samples map[string][]memorySample
}

// memorySample is one scrape, and the numbers of the transactions around it.
type memorySample struct {
	from, to             uint64
	held, received, most float64
}

// Until takes samples until something is done, and judges them.
func (m *memoryBound) Until(done <-chan struct{}) {
	m.e.tb.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			m.take()
		case <-done:
			for name, all := range m.samples {
				top := memorySample{}
				for _, s := range all {
					if s.held > top.held {
						top = s
					}
				}
				m.e.tb.Logf("%s: %d samples, at most %v bytes of %v", name, len(all), top.held, top.most)
				if len(all) < 5 {
					m.e.tb.Errorf("%s: %d samples", name, len(all))
				}
			}
			return
		}
	}
}

func (m *memoryBound) take() {
	m.e.tb.Helper()
	number := func() uint64 {
		n, err := transaction(filepath.Join(m.dir, "kubeferry.db"))
		if err != nil && !os.IsNotExist(err) {
			m.e.tb.Error(err)
		}
		return n
	}
	from := number()
	scrape := m.e.Metrics()
	to := number()
	for key := range scrape {
		name, ok := strings.CutPrefix(key, `kubeferry_backlog_bytes{pipeline="`)
		if !ok {
			continue
		}
		name = strings.TrimSuffix(name, `"}`)
		s := memorySample{from: from, to: to, held: scrape[key], received: scrape.sum("kubeferry_deltas_received_total", "pipeline="+name)}
		earlier := 0.0
		for _, before := range m.samples[name] {
			if before.to+3 <= from {
				earlier = before.received
			}
		}
		s.most = m.bytes + (s.received-earlier+1)*m.largest // one may be on its way in
		m.samples[name] = append(m.samples[name], s)
		if s.held > s.most {
			m.e.tb.Errorf("%s: %v bytes in memory, bound by %v, with %v changes since the commit before the last", name, s.held, m.bytes, s.received-earlier)
		}
	}
}

// peakRSS is the most memory that kubeferry has taken so far.
func peakRSS(tb testing.TB, e *exporter) int64 {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.process.Pid()))
	if err != nil {
		tb.Skipf("no peak RSS on this system: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return kilobytes << 10
		}
	}
	tb.Fatal("no VmHWM in /proc/<pid>/status")
	return 0
}
