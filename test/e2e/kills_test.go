package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestKilledTenTimes kills kubeferry with -9 at random moments of a load. Every change arrives, and what arrives
// twice is what was acknowledged since the last commit before each kill, which is never long ago.
func TestKilledTenTimes(t *testing.T) {
	config := plane(t).Config()
	namespace := newNamespace(t, "kill9")
	kinds := []load.Resource{load.Deployments(), load.ConfigMaps(), load.Events()}
	hook := webhooktest.Start(t)
	bus := natstest.Start(t, nil)
	// The broker's time of a record is when it was stored, not the one in the record.
	broker := kafkatest.StartWith(t, kafkatest.Options{Properties: map[string]string{"log.message.timestamp.type": "LogAppendTime"}})
	broker.CreateTopic("kill", 3)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	const underWay = 2 * 5 // what the configuration allows the webhook and Kafka
	dir := t.TempDir()
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [apps/v1/deployments, v1/configmaps, v1/events], namespaces: {include: [%s]}}]
pipelines: [{name: hook, sink: hook}, {name: jetstream, sink: bus}, {name: kafka, sink: log}]
sinks:
  - {name: hook, webhook: {url: %q, batch: {maxRecords: 5}, concurrency: 2}}
  - {name: bus, nats: {urls: [%q], subject: "k8s.{group}.{resource}.{namespace}.{name}", stream: {name: KILL, create: true}}}
  - {name: log, kafka: {brokers: [%q], topic: kill, batch: {maxRecords: 5}, concurrency: 2}}
`, dir, namespace, hook.URL(), bus.URL(), broker.Addr())

	runs := []*commits{watchCommits(t, dir)}
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 60, Seed: 9, Rate: 200})
	runs[0].Wait(2) // the history before the first commit is the snapshot's
	for range 10 {
		lasting(t, time.Duration(300+rand.IntN(700))*time.Millisecond)
		runs[len(runs)-1].Measure(e)
		e.Kill()
		runs[len(runs)-1].End()
		runs = append(runs, watchCommits(t, dir))
		e = startExporter(t, plane(t).KubeconfigFile(), text)
	}
	killed := runs[:len(runs)-1]
	if len(running.result) > 0 {
		t.Fatal("the load was over before the last kill")
	}
	e.WaitReady()
	result := running.End()

	report := expectAll(t, watched, result, hookReader(t, hook, cloudEvents), oracle.CompareOptions{Snapshot: oracle.SnapshotForbidden})
	t.Log("webhook:", report)
	e.WaitWaiting(wide, 0)
	runs[len(runs)-1].End()
	if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 0 {
		t.Errorf("%v gaps, although the API server refused nothing", gaps)
	}
	arrivals := hookArrivals(hook)
	expectFrequentCommits(t, arrivals, killed)
	if n := expectFewRepeats(t, "webhook", arrivals, runs, underWay); n != len(report.Duplicates) {
		t.Errorf("%d repeats judged, of %d", n, len(report.Duplicates))
	}
	stored := watched.Compare(streamReader(t, bus, "KILL")(), oracle.CompareOptions{Snapshot: oracle.SnapshotForbidden})
	if err := stored.Err(); err != nil {
		t.Error("JetStream: ", err)
	}
	if len(stored.Duplicates) > 0 {
		t.Errorf("JetStream stored twice: %v", stored.Duplicates)
	}
	logged := watched.Compare(topicReader(t, broker, cloudEvents, "kill")(), oracle.CompareOptions{Snapshot: oracle.SnapshotForbidden})
	t.Log("Kafka:", logged)
	if err := logged.Err(); err != nil {
		t.Error("Kafka: ", err)
	}
	expectFewRepeats(t, "Kafka", topicArrivals(t, broker, "kill"), runs, underWay)
}

// TestKilledWhileCatchingUp kills kubeferry with -9 while it reads its log back for a receiver that has returned and is
// slow: an entry stays in the log until it is acknowledged, however far the reading is ahead.
func TestKilledWhileCatchingUp(t *testing.T) {
	beside(t)
	const (
		changes  = 1500
		bound    = 512 << 10
		underWay = 2 * 5 // what the configuration allows
	)
	config := plane(t).Config()
	namespace := newNamespace(t, "catchup")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	dir := t.TempDir()
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook, backlog: {maxBytes: %d}}]
sinks: [{name: hook, webhook: {url: %q, batch: {maxRecords: 5}, concurrency: 2}}]
`, dir, namespace, bound, hook.URL())
	runs := []*commits{watchCommits(t, dir)}
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	all := runLoad(t, config, load.Options{
		Resources: kinds, Namespaces: []string{namespace}, Objects: 200, Operations: changes, Size: 2 << 10, Seed: 16, Concurrency: 8,
	})
	e.WaitWaiting(3*wide, changes)
	eventually(t, wide, "what does not fit is in the log", func() error {
		m := e.Metrics()
		memory, disk := m.sum("kubeferry_backlog_bytes"), m.sum("kubeferry_log_bytes")
		if memory > bound || disk < 2<<20 {
			return fmt.Errorf("%v bytes in memory, %v in the log", memory, disk)
		}
		return nil
	})

	// The receiver is fast until it has what the next kill waits for, and slow from then on: else the log may be empty before a busy
	// machine kills. It answers all the same, so that commits have something to write.
	answer := webhooktest.Answer{Status: http.StatusOK, After: 10 * time.Millisecond}
	var want int
	var taken, fast atomic.Int64
	next := func() {
		more := 100 + rand.IntN(100)
		want = len(hook.Accepted()) + more
		fast.Store(taken.Load() + int64(more))
	}
	next()
	hook.Use(func(r *webhooktest.Request) webhooktest.Answer {
		if answer := answer; taken.Add(int64(len(r.Records))) > fast.Load() {
			answer.After = 200 * time.Millisecond
			return answer
		}
		return answer
	})
	for n := range 4 {
		eventually(t, 2*wide, "it delivers from its log", func() error {
			if got := len(hook.Accepted()); got < want {
				return fmt.Errorf("%d records, want %d", got, want)
			}
			return nil
		})
		// Of the log entries, which are larger than the objects, far more are left than memory takes.
		if left := e.Metrics().sum("kubeferry_log_bytes"); left < 2*bound {
			t.Fatalf("kill %d: %v bytes are left in the log; it is not catching up any more", n, left)
		}
		runs[n].Measure(e)
		e.Kill()
		runs[n].End()
		next() // before there is anything to take
		runs = append(runs, watchCommits(t, dir))
		e = startExporter(t, plane(t).KubeconfigFile(), text)
	}
	hook.Use(webhooktest.Always(answer))
	report := expectAll(t, watched, all, hookReader(t, hook, cloudEvents), oracle.CompareOptions{Snapshot: oracle.SnapshotForbidden})
	t.Log(report)
	e.WaitWaiting(wide, 0)
	runs[4].End()
	if restored := e.Metrics().sum("kubeferry_deltas_restored_total"); restored < 500 {
		t.Errorf("%v restored at the last start", restored)
	}
	arrivals := hookArrivals(hook)
	expectFewRepeats(t, "webhook", arrivals, runs, underWay)
	expectFrequentCommits(t, arrivals, runs[:4])
}
