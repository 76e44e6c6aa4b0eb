package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

func faultLoad(namespace string) load.Options {
	return load.Options{
		Resources: []load.Resource{load.ConfigMaps(), load.Deployments()}, Namespaces: []string{namespace},
		Objects: 30, Operations: 250, Seed: 6,
	}
}

// TestReceiverComesLate starts kubeferry before its receiver.
func TestReceiverComesLate(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "late")
	hook := webhooktest.Start(t)
	receiver := proxy.NewTCP(t, strings.TrimPrefix(hook.URL(), "http://"))
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(faultLoad(namespace).Resources), Namespaces: []string{namespace}})
	// The time-out is long, as a busy receiver would be one that fails again.
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps, apps/v1/deployments], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: "http://%s/in", timeout: 60s}}]
`, namespace, receiver.Addr()))
	e.WaitReady()
	done := runLoad(t, config, faultLoad(namespace))
	e.WaitSink(wide, "p", false)
	e.WaitLogged(wide, "the sink is away", "refused")
	if p := e.Status().Pipelines[0]; !strings.Contains(p.LastError, "refused") {
		t.Errorf("/status: %+v", p)
	}
	if code, body := e.Get("/readyz"); code != http.StatusOK {
		t.Errorf("a dead sink makes /readyz %d %s", code, body)
	}
	receiver.Come()
	read := hookReader(t, hook, cloudEvents)
	expectAll(t, watched, done, read, oracle.CompareOptions{})
	e.WaitSink(wide, "p", true)
	if n := len(e.Logged("the sink is away")); n != 1 {
		t.Errorf("the log says %d times that the sink is away, want once", n)
	}
}

// TestPoisonedRecord has one record that fails for ever: it holds its own object back, and no other.
func TestPoisonedRecord(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 20} {
		t.Run(fmt.Sprintf("batches of %d", batch), func(t *testing.T) {
			beside(t)
			config := plane(t).Config()
			namespace := newNamespace(t, "poison")
			objects := objectsIn(t, config, configMaps, namespace)
			uid := string(objects.Create("poisoned", data("1")).GetUID())
			hook := webhooktest.Start(t)
			hook.Use(webhooktest.WhenID(func(id string) bool { return strings.Contains(id, uid) },
				webhooktest.Answer{Status: http.StatusInternalServerError}, webhooktest.Accept()))
			e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook, retry: {initial: 50ms, max: 1s}}]
sinks: [{name: hook, webhook: {url: %q, batch: {maxRecords: %d}}}]
`, namespace, hook.URL(), batch))
			e.WaitReady()
			objects.Patch("poisoned", data("2"))
			for n := range 200 {
				objects.Create(fmt.Sprintf("healthy-%d", n), data("1"))
			}
			read := hookReader(t, hook, cloudEvents)
			eventually(t, wide, "the others arrive", func() error {
				if n := len(read()); n < 200 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			pulse, before := startPulse(t, nil), timesOf(t, e.process.Pid())
			var took time.Duration // of kubeferry: not of the API server, nor until a look finds the record
			for n := range 20 {
				name := fmt.Sprintf("later-%d", n)
				created := objects.Create(name, data("1"))
				from := time.Now()
				wait(t, read, name, oracle.Added)
				for _, a := range hookArrivals(hook) {
					if strings.Contains(a.id, string(created.GetUID())) {
						took += max(0, a.at.Sub(from)-pulse.Stalled(from, a.at))
						break
					}
				}
			}
			// Behind the poisoned one each would wait for its retries, a second apart.
			if most := timesOf(t, e.process.Pid()).since(before).slowed(10 * time.Second); took > most {
				t.Errorf("20 records beside the poisoned one took %v, want at most %v", took, most)
			}
			// The receiver has the last record a moment before kubeferry has its answer.
			eventually(t, wide, "only the poisoned object waits", func() error {
				if p := e.Status().Pipelines[0]; p.Waiting != 2 || p.State != "available" {
					return fmt.Errorf("%+v", p)
				}
				return nil
			})
			hook.Use(webhooktest.Accept())
			wait(t, read, "poisoned", oracle.Modified)
			if got := of(read(), "poisoned"); !slices.Equal(got, []string{"ADDED snapshot", "MODIFIED"}) {
				t.Errorf("poisoned: %q", got)
			}
		})
	}
}

// letter is a dead letter.
type letter struct {
	Pipeline, Sink, Reason, Error string
	Record                        struct {
		ID, Key string
		Body    json.RawMessage
	}
}

func readLetters(tb testing.TB, file string) []letter {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		tb.Fatal(err)
	}
	var letters []letter
	for line := range strings.Lines(string(text)) {
		var l letter
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			tb.Fatalf("dead letter %.200q: %v", line, err)
		}
		letters = append(letters, l)
	}
	return letters
}

// TestTooLargeForTheReceiver has one record in a batch refused with 413.
func TestTooLargeForTheReceiver(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "large")
	objects := objectsIn(t, config, configMaps, namespace)
	uid := ""
	for n := range 30 {
		created := objects.Create(fmt.Sprintf("c-%d", n), data("1"))
		if n == 12 {
			uid = string(created.GetUID())
		}
	}
	hook := webhooktest.Start(t)
	hook.Use(webhooktest.WhenID(func(id string) bool { return strings.Contains(id, uid) },
		webhooktest.Answer{Status: http.StatusRequestEntityTooLarge}, webhooktest.Accept()))
	dead := filepath.Join(t.TempDir(), "dead.jsonl")
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook, deadLetter: dead}]
sinks:
  - {name: hook, webhook: {url: %q, batch: {maxRecords: 40, linger: 500ms}}}
  - {name: dead, file: {path: %q}}
`, namespace, hook.URL(), dead))
	e.WaitReady()
	read := hookReader(t, hook, cloudEvents)
	eventually(t, wide, "the neighbours arrive", func() error {
		if n := len(read()); n != 29 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	e.WaitSettled(wide)
	letters := readLetters(t, dead)
	path := "/api/v1/namespaces/" + namespace + "/configmaps/c-12"
	if len(letters) != 1 || letters[0].Reason != "too_large" || letters[0].Record.Key != path ||
		!strings.Contains(letters[0].Record.ID, uid) || letters[0].Pipeline != "p" || letters[0].Sink != "hook" {
		t.Errorf("got letters %+v", letters)
	} else if r, err := oracle.ParseCloudEvent(letters[0].Record.Body); err != nil || r.Name != "c-12" {
		t.Errorf("the letter holds %+v, %v", r, err)
	}
	line := e.WaitLogged(wide, "dead letter", uid)
	if line["level"] != "ERROR" || line["name"] != "c-12" || line["namespace"] != namespace {
		t.Errorf("the log says %v", line)
	}
	if n := e.Metrics().sum("kubeferry_records_dead_total", "pipeline=p", "reason=too_large"); n != 1 {
		t.Errorf("%v dead", n)
	}
}

// TestBrokersComeLate starts kubeferry before Kafka and NATS, and then sends them an object that is larger than
// they take.
func TestBrokersComeLate(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "brokers")
	objects := objectsIn(t, config, configMaps, namespace)
	broker, bus := kafkatest.Start(t), natstest.Start(t, nil)
	broker.CreateTopic("late", 2)
	broker.Stop()
	bus.Stop()
	dead := filepath.Join(t.TempDir(), "dead.jsonl")
	nobody, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines:
  - {name: jetstream, sink: bus, deadLetter: dead}
  - {name: kafka, sink: log, deadLetter: dead}
sinks:
  - {name: bus, nats: {urls: [%q], subject: "k8s.{group}.{resource}.{namespace}.{name}", timeout: 5s, stream: {name: K8S, create: true}}}
  - {name: log, kafka: {brokers: [%q, %q], topic: late, timeout: 5s}}
  - {name: dead, file: {path: %q}}
`, namespace, bus.URL(), freeport.Addr(nobody), broker.Addr(), dead))
	e.WaitReady()
	for n := range 20 {
		objects.Create(fmt.Sprintf("c-%d", n), data("1"))
	}
	objects.Create("large", data(noise(1_030_000)))
	objects.Patch("large", map[string]any{"metadata": map[string]any{"annotations": map[string]any{"more": noise(200_000)}}})
	objects.Patch("c-0", data("2"))
	for _, name := range []string{"jetstream", "kafka"} {
		e.WaitSink(wide, name, false)
		if n := e.Metrics().sum("kubeferry_sink_errors_total", "pipeline="+name); n < 1 {
			t.Errorf("%s: %v errors", name, n)
		}
	}
	e.WaitLogged(wide, "the sink is away", "jetstream")
	e.WaitLogged(wide, "the sink is away", "kafka")
	for _, p := range e.Status().Pipelines {
		if p.LastError == "" || p.State != "away" {
			t.Errorf("/status: %+v", p)
		}
	}
	if code, body := e.Get("/readyz"); code != http.StatusOK {
		t.Errorf("dead sinks make /readyz %d %s", code, body)
	}
	bus.Restart()
	broker.Restart()
	for _, name := range []string{"jetstream", "kafka"} {
		e.WaitSink(30*time.Second, name, true)
	}
	e.WaitSettled(wide)

	for name, read := range map[string]reader{
		"jetstream": streamReader(t, bus, "K8S"), "kafka": topicReader(t, broker, cloudEvents, "late"),
	} {
		records := read()
		if name == "kafka" { // what timed out may be stored all the same, and is sent again under its id
			seen := map[string]bool{}
			records = slices.DeleteFunc(records, func(r oracle.Record) bool {
				again := seen[r.ID]
				seen[r.ID] = true
				return again
			})
		}
		if got := of(records, "c-0"); !slices.Equal(got, []string{"ADDED", "MODIFIED"}) {
			t.Errorf("%s: c-0 has %q", name, got)
		}
		if got := of(records, "large"); len(records) != 21+len(got) || len(got) > 1 {
			t.Errorf("%s: %d records, %q of the large one", name, len(records), got)
		}
	}
	named := map[string]int{}
	for _, l := range readLetters(t, dead) {
		if l.Reason != "too_large" || !strings.HasSuffix(l.Record.Key, "/configmaps/large") {
			t.Errorf("letter of %s: %s %s: %s", l.Pipeline, l.Reason, l.Record.Key, l.Error)
		}
		named[l.Pipeline]++
	}
	if named["jetstream"] == 0 || named["kafka"] == 0 {
		t.Errorf("letters: %v, want one of each pipeline", named)
	}
	e.WaitLogged(wide, "dead letter", "large", namespace, "kafka")
}
