package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

const (
	// recoveryBound is how long after its sink's recovery a pipeline gets the first record through, and so how far apart
	// its probes may be, not counting moments in which the machine ran nothing.
	recoveryBound = 2 * time.Second
	// recoveryWorst is the same for a single one on a machine that has other things to do.
	recoveryWorst = 8 * time.Second
	// muchWaits is how many changes wait in each pipeline at the end of a fault, and fewestProbes how often each has tried by then.
	muchWaits, fewestProbes = 120, 3
)

// failing is a pipeline whose receiver fails as a whole for a while.
type failing struct {
	kind     string
	pipeline string
	hook     *webhooktest.Receiver
	url      string
	begin    func()
	end      func()
	timeout  string
	// repeats is set if what was accepted in the moment of a break, or too late, is sent again.
	repeats  bool
	from, to int // requests seen when it began and ended
	began    time.Time
	closed   time.Time // its gate, and those of the others
	ended    time.Time
	// failures are those that kubeferry counted, of a receiver that is not there to see them.
	failures []probe
	failed   float64
}

// probe is one attempt of a pipeline to get through. It was made between two moments, which are one where it was seen.
type probe struct{ after, before time.Time }

// TestExtendedSinkFaults lets receivers fail in every way there is, at the same time, for 6 s of a load: nothing is lost, order
// is kept, memory is bounded, each kind of sink is back within 2 s of its recovery, and a pipeline beside them notices nothing.
func TestExtendedSinkFaults(t *testing.T) {
	config := plane(t).Config()
	namespace := newNamespace(t, "fault")
	healthy := webhooktest.Start(t)
	var all []*failing
	var pipelines, sinks strings.Builder
	for _, batch := range []int{1, 25} {
		for _, f := range sinkFaults(t) {
			f.pipeline = fmt.Sprintf("%s-%d", f.kind, batch)
			all = append(all, f)
			_, _ = fmt.Fprintf(&pipelines, "  - {name: %[1]s, sink: %[1]s, retry: {initial: 50ms}, backlog: {maxBytes: 128Ki}}\n", f.pipeline)
			_, _ = fmt.Fprintf(&sinks, "  - {name: %s, webhook: {url: %q, timeout: %s, batch: {maxRecords: %d}}}\n", f.pipeline, f.url, f.timeout, batch)
		}
	}
	kinds := []load.Resource{load.ConfigMaps(), load.Deployments()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps, apps/v1/deployments], namespaces: {include: [%s]}}]
pipelines:
  - {name: healthy, sink: healthy}
%ssinks:
  - {name: healthy, webhook: {url: %q}}
%s`, t.TempDir(), namespace, &pipelines, healthy.URL(), &sinks))
	e.WaitReady()
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 40, Seed: 6, Rate: 40})
	eventually(t, wide, "every pipeline delivers", func() error {
		for _, p := range e.Status().Pipelines {
			if p.Delivered < 30 {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
	before, calm := peakRSS(t, e), e.Metrics()

	for _, f := range all {
		f.begin()
		f.began, f.from = time.Now(), len(f.hook.Requests())
	}
	for _, f := range all {
		e.WaitSink(wide, f.pipeline, false)
	}
	for _, f := range all {
		f.closed = time.Now()
	}
	pulse := startPulse(t, nil)
	begun := time.Now()
	busy := countFailures(t, e, all, 6*time.Second)
	m := e.Metrics()
	during := func(name string) float64 {
		return m.sum(name, "pipeline=healthy") - calm.sum(name, "pipeline=healthy")
	}
	most := e.Slowed(time.Second) + pulse.Stalled(begun, time.Now())
	if seconds := during("kubeferry_delivery_seconds_sum") / during("kubeferry_delivery_seconds_count"); !(seconds < most.Seconds()) {
		t.Errorf("the healthy pipeline took %v s per delivery beside those that failed, want less than %v", seconds, most)
	}
	for _, f := range all {
		// Beside its bound a backlog holds what the next commit writes to the log.
		if bytes := m.sum("kubeferry_backlog_bytes", "pipeline="+f.pipeline); bytes > 2*128<<10 {
			t.Errorf("%s: backlog_bytes is %v", f.pipeline, bytes)
		}
		if waiting := m.sum("kubeferry_backlog_deltas", "pipeline="+f.pipeline); waiting < muchWaits {
			t.Errorf("%s: %v changes wait; the load is poor", f.pipeline, waiting)
		}
	}
	if code, body := e.Get("/readyz"); code != http.StatusOK {
		t.Errorf("dead sinks make /readyz %d %s", code, body)
	}
	grown := peakRSS(t, e) - before
	t.Logf("peak RSS %d MiB, %d MiB more than before the faults", (grown+before)>>20, grown>>20)
	if grown > 128<<20 { // under the race detector, with 14 backlogs
		t.Errorf("peak RSS grew by %d MiB", grown>>20)
	}
	var done *load.Result
	for n, f := range all { // one after the other: what they have to catch up with keeps the machine busy
		if n == len(all)/2 {
			done = running.End() // on a slow machine every pipeline would have more to catch up with than the one before
		}
		f.to, f.ended = len(f.hook.Requests()), time.Now()
		f.end()
		e.WaitSink(wide, f.pipeline, true)
	}

	expectAll(t, watched, done, hookReader(t, healthy, cloudEvents), oracle.CompareOptions{})
	// Of each kind the better one: the machine may be busy with what another pipeline has to catch up with.
	recovery, pause := map[string]time.Duration{}, map[string]time.Duration{}
	better := func(of map[string]time.Duration, kind string, d time.Duration) {
		if before, seen := of[kind]; !seen || d < before {
			of[kind] = d
		}
	}
	for _, f := range all {
		t.Run(f.pipeline, func(t *testing.T) {
			back := f.judge(t, e, watched, done)
			took, stalled := back.Sub(f.ended), pulse.Stalled(f.ended, back)
			longest := f.longestPause(t, back, pulse)
			t.Logf("back after %v, with the machine stalled for %v; probes at most %v apart", took, stalled, longest)
			if most := e.Slowed(recoveryWorst); took-stalled > most {
				t.Errorf("the first record came %v after its sink was back, want at most %v", took, most)
			}
			better(recovery, f.kind, took-stalled)
			better(pause, f.kind, longest)
		})
	}
	t.Logf("kubeferry took up to %v to answer", busy)
	for kind, back := range recovery {
		if most := e.Slowed(recoveryBound) + busy; back > most || pause[kind] > most {
			t.Errorf("%s: back after %v, with %v between probes, want at most %v", kind, back, pause[kind], most)
		}
	}
	e.WaitWaiting(wide, 0)
}

// sinkFaults are the ways to fail, each with a receiver of its own.
func sinkFaults(tb testing.TB) []*failing {
	tb.Helper()
	var all []*failing
	for name, behavior := range map[string]webhooktest.Behavior{
		"500":   webhooktest.Status(http.StatusInternalServerError),
		"401":   webhooktest.Status(http.StatusUnauthorized),
		"429":   webhooktest.Always(webhooktest.Answer{Status: http.StatusTooManyRequests, RetryAfter: time.Second}),
		"hang":  webhooktest.Always(webhooktest.Answer{Hang: true}),
		"reset": webhooktest.Always(webhooktest.Answer{Reset: true}),
		"close": webhooktest.Always(webhooktest.Answer{CloseAfter: 700 * time.Millisecond}),
	} {
		hook := webhooktest.Start(tb)
		f := &failing{
			kind: name, hook: hook, url: hook.URL(), timeout: "10s",
			begin: func() { hook.Use(behavior) }, end: func() { hook.Use(webhooktest.Accept()) },
		}
		if name == "hang" {
			f.timeout, f.repeats = "3s", true
		}
		all = append(all, f)
	}
	hook := webhooktest.Start(tb)
	way := proxy.NewTCP(tb, strings.TrimPrefix(hook.URL(), "http://"))
	way.Come()
	return append(all, &failing{
		kind: "gone", hook: hook, url: "http://" + way.Addr(), timeout: "10s",
		begin: way.Leave, end: way.Come, repeats: true,
	})
}

// countFailures notes when kubeferry counts another failure of a sink: for at least so long, and until much waits and each pipeline has
// tried often enough, which takes longer on a busy machine. It returns the longest that kubeferry took to answer, which shows how
// late it does anything on this machine.
func countFailures(tb testing.TB, e *exporter, all []*failing, d time.Duration) (busy time.Duration) {
	tb.Helper()
	begin, last := time.Now(), time.Now()
	eventually(tb, d+wide, "each pipeline has tried, and much waits", func() error {
		begun := time.Now()
		m := e.Metrics()
		busy = max(busy, time.Since(begun))
		for _, f := range all {
			failed := m.sum("kubeferry_sink_errors_total", "pipeline="+f.pipeline)
			if failed > f.failed && f.failed > 0 {
				f.failures = append(f.failures, probe{after: last, before: time.Now()})
			}
			f.failed = failed
		}
		last = begun
		if time.Since(begin) < d {
			return errors.New("the faults are to last longer")
		}
		for _, f := range all {
			waiting, probes := m.sum("kubeferry_backlog_deltas", "pipeline="+f.pipeline), len(f.probes(time.Now()))
			if waiting < muchWaits || probes < fewestProbes {
				return fmt.Errorf("%s: %v wait, %d probes", f.pipeline, waiting, probes)
			}
		}
		return nil
	})
	return busy
}

// probes are those from when the gate was closed until a moment.
func (f *failing) probes(until time.Time) []probe {
	if f.kind == "gone" {
		return f.failures
	}
	var probes []probe
	for _, r := range f.hook.Requests() {
		if r.Time.After(f.closed) && !r.Time.After(until) {
			probes = append(probes, probe{r.Time, r.Time})
		}
	}
	return probes
}

// longestPause is the longest time between two probes, from when the gate was closed until the first success.
func (f *failing) longestPause(t *testing.T, success time.Time, pulse *pulse) time.Duration {
	t.Helper()
	probes := f.probes(success)
	if len(probes) < fewestProbes {
		t.Errorf("%d probes in %v", len(probes), f.ended.Sub(f.closed))
	}
	longest := time.Duration(0)
	for n := 1; n < len(probes); n++ {
		from, to := probes[n-1].before, probes[n].after
		longest = max(longest, to.Sub(from)-pulse.Stalled(from, to))
	}
	return longest
}

// judge looks at one pipeline after its sink's recovery, and returns when the first record came.
func (f *failing) judge(t *testing.T, e *exporter, watched *oracle.Oracle, done *load.Result) time.Time {
	report := expectAll(t, watched, done, hookReader(t, f.hook, cloudEvents), oracle.CompareOptions{})
	t.Log(report)
	if len(report.Duplicates) > 0 && !f.repeats {
		t.Errorf("%d records arrived again, although none was accepted during the fault", len(report.Duplicates))
	}
	requests := f.hook.Requests()
	// What was under way, the first probes, which come quickly, and then one in a second and a half.
	lasted := f.ended.Sub(f.began)
	if n, most := f.to-f.from, 25+int(lasted.Seconds()); n > most {
		t.Errorf("%d requests in the %v of the fault, want at most %d", n, lasted.Round(time.Second), most)
	}
	first := slices.IndexFunc(requests[f.to:], func(r webhooktest.Request) bool { return r.Status/100 == 2 })
	if first < 0 {
		t.Fatal("nothing was accepted after the fault")
	}
	label := "pipeline=" + f.pipeline
	m := e.Metrics()
	if m.sum("kubeferry_sink_errors_total", label) < 1 || m.sum("kubeferry_records_dead_total", label) != 0 {
		t.Errorf("errors %v, dead %v", m.sum("kubeferry_sink_errors_total", label), m.sum("kubeferry_records_dead_total", label))
	}
	said := 0
	for _, line := range e.Logged("the sink is away") {
		if line["pipeline"] == f.pipeline {
			said++
		}
	}
	if said == 0 || said > 3 {
		t.Errorf("the log says %d times that the sink is away", said)
	}
	return requests[f.to+first].Time
}
