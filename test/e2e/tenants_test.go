package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

const (
	// goodRate is how many changes per second the tenant makes whose records are taken.
	goodRate = 50
	// maxDelay bounds the p99 of the time that they take beside those of another tenant.
	maxDelay = 5 * time.Second
	// maxTopics bounds how many topics are made of names that a tenant chooses.
	maxTopics = 5
)

// TestExtendedTenantWhoseRecordsAreRefused has receivers that refuse all records of one tenant: 1,000 small objects, 40 objects of
// 0.9 MB, those that waited in a backlog on disk over a restart, and those whose Kafka topic does not exist. Every change of
// another tenant beside them arrives all the same, and within 5 s, also after a restart.
func TestExtendedTenantWhoseRecordsAreRefused(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	bad, big, good := newNamespace(t, "bad"), newNamespace(t, "big"), newNamespace(t, "good")
	broker := kafkatest.Start(t) // it makes no topics by itself
	topic := "k8s." + good
	broker.CreateTopicWith(topic, 3, map[string]string{"message.timestamp.type": "LogAppendTime"})
	small, large, spilled, alone := startTenantHook(t, bad), startTenantHook(t, big), startTenantHook(t, bad), startTenantHook(t, bad)
	spilled.away(true)
	gone := time.Now()
	text := fmt.Sprintf(`
stateDir: %q
sources:
  - {name: small, resources: [v1/configmaps], namespaces: {include: [%[2]s, %[4]s]}}
  - {name: large, resources: [v1/configmaps], namespaces: {include: [%[3]s, %[4]s]}}
pipelines:
  - {name: small, sources: [small], sink: small}
  - {name: large, sources: [large], sink: large}
  - {name: spilled, sources: [small], sink: spilled, backlog: {maxBytes: 4Mi}}
  - {name: kafka, sources: [small], sink: kafka}
  - {name: topics, sources: [small], sink: topics, filters: [{namespaces: {include: [%[2]s]}}]}
  - {name: alone, sources: [small], sink: alone, filters: [{namespaces: {include: [%[4]s]}}]}
sinks:
  - {name: small, webhook: {url: %[5]q, batch: {maxRecords: 25}}}
  - {name: large, webhook: {url: %[6]q}}
  - {name: spilled, webhook: {url: %[7]q, batch: {maxRecords: 25}}}
  - {name: kafka, kafka: {brokers: [%[8]q], topic: "k8s.{namespace}"}}
  - {name: topics, kafka: {brokers: [%[8]q], topic: "made.{name}", createTopics: true, maxTopics: %[10]d}}
  - {name: alone, webhook: {url: %[9]q}}
`, t.TempDir(), bad, big, good, small.server.URL, large.server.URL, spilled.server.URL, broker.Addr(), alone.server.URL, maxTopics)
	e := startExporter(t, plane(t).KubeconfigFile(), text, plain(t))
	e.WaitReady()
	writeMany(t, objectsIn(t, config, configMaps, bad), "bad", 1000, 0, data("refused"))
	writeMany(t, objectsIn(t, config, configMaps, big), "big", 40, 0, data(noise(900<<10)))

	written := writeMany(t, objectsIn(t, config, configMaps, good), "good", 6*goodRate, goodRate, data(noise(12<<10))) // more than the backlog has memory for
	most := expectSoon(t, e, written, alone, map[string]*tenantHook{"small": small, "large": large})
	expectTopic(t, broker, topic, written, most)
	if code, body := e.Get("/readyz"); code != http.StatusOK {
		t.Errorf("refused records make /readyz %d %s", code, body)
	}
	if n := broker.CountTopics("made."); n == 0 || n > maxTopics {
		t.Errorf("%d topics were made, want at most %d", n, maxTopics)
	}

	eventually(t, wide, "the backlog is on disk", func() error {
		for _, p := range e.Status().Pipelines {
			if p.Name == "spilled" && (p.OnDisk == 0 || p.Waiting < uint64(1000+len(written))) {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
	e.Kill()
	// While a sink is away, it gets probes only, in the end one every 1.5 s.
	if probes, most := spilled.turnedAway(), 20+int(time.Since(gone)/(1500*time.Millisecond)); probes > most {
		t.Errorf("a sink that was away for %v got %d requests, want at most %d", time.Since(gone), probes, most)
	}
	spilled.away(false)
	e = startExporter(t, plane(t).KubeconfigFile(), text, plain(t))
	e.WaitReady()
	waited := slices.Clone(written)
	for n, ready := 0, time.Now(); n < len(waited); n++ {
		waited[n].at = ready // until the restart no change could arrive; what does before this counts as less than nothing
	}
	if p99, most := spilled.expect(t, "the backlog after a restart", waited), e.Slowed(maxDelay); p99 > most {
		t.Errorf("the p99 of what waited in the backlog is %v after the restart, want at most %v", p99, most)
	}
	later := writeMany(t, objectsIn(t, config, configMaps, good), "late", 4*goodRate, goodRate, data("taken"))
	most = expectSoon(t, e, later, alone, map[string]*tenantHook{"small": small, "large": large, "spilled": spilled})
	expectTopic(t, broker, topic, later, most)
	e.Kill() // what is refused waits: it would be tried again until the end of the grace period
}

// expectSoon waits until all that was written has arrived, within maxDelay on a machine that is not busy. How long the API server takes
// shows at alone, whose pipeline has no other records; how long kubeferry waits for a processor, its threads show. It returns what the
// p99 may be.
func expectSoon(t *testing.T, e *exporter, written []write, alone *tenantHook, hooks map[string]*tenantHook) (most time.Duration) {
	t.Helper()
	undisturbed := alone.expect(t, "alone", written)
	p99 := map[string]time.Duration{}
	for name, hook := range hooks {
		p99[name] = hook.expect(t, name, written)
	}
	most = e.Slowed(maxDelay) + 5*undisturbed
	t.Logf("want at most %v", most)
	for name, took := range p99 {
		if took > most {
			t.Errorf("%s: the p99 of good changes is %v, want at most %v", name, took, most)
		}
	}
	return most
}

// write is a change with the id of its record.
type write struct {
	id string
	at time.Time
}

// writeMany creates objects, so many per second or, with 0, as fast as the server takes them.
func writeMany(tb testing.TB, in *objects, prefix string, n, rate int, fields map[string]any) []write {
	tb.Helper()
	ctx, cancel := context.WithCancelCause(tb.Context())
	defer cancel(nil)
	turns := make(chan int)
	writes := make([]write, n)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := range turns {
				object := &unstructured.Unstructured{Object: map[string]any{"data": fields["data"]}}
				object.SetAPIVersion("v1")
				object.SetKind("ConfigMap")
				object.SetName(fmt.Sprintf("%s-%d", prefix, i))
				at := time.Now()
				created, err := in.client.Create(ctx, object, metav1.CreateOptions{})
				if err != nil {
					cancel(err)
					return
				}
				writes[i] = write{fmt.Sprintf("%s/%s/%s/ADDED", clusterName, created.GetUID(), created.GetResourceVersion()), at}
			}
		})
	}
	ticker := time.NewTicker(time.Second / time.Duration(max(rate, 1)))
	defer ticker.Stop()
	for i := 0; i < n && ctx.Err() == nil; i++ {
		if rate > 0 {
			<-ticker.C
		}
		select {
		case turns <- i:
		case <-ctx.Done():
		}
	}
	close(turns)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		tb.Fatalf("create %s: %v", prefix, err)
	}
	return writes
}

// tenantHook is a receiver that refuses each request with a record of one namespace. It keeps few bodies.
type tenantHook struct {
	server  *httptest.Server
	refused string
	closing chan struct{} // closed at the end, to release requests that hang

	mu      sync.Mutex // guards what follows
	gone    bool
	turned  int // requests that came while it was gone
	status  int // of what it refuses; 0 is no answer
	arrived map[string]time.Time
	first   []asyncapi.Message
}

func startTenantHook(tb testing.TB, refused string) *tenantHook {
	tb.Helper()
	h := &tenantHook{
		refused: "/namespaces/" + refused + "/", closing: make(chan struct{}), status: http.StatusForbidden, arrived: map[string]time.Time{},
	}
	h.server = httptest.NewServer(h)
	tb.Cleanup(func() {
		close(h.closing)
		h.server.CloseClientConnections()
		h.server.Close()
		for _, m := range h.first {
			asyncapi.Expect(tb, "webhook", m)
		}
	})
	return h
}

func (h *tenantHook) away(gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = gone
}

// turnedAway returns how many requests came while it was away.
func (h *tenantHook) turnedAway() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.turned
}

// answer sets the status of what is refused; 0 is no answer.
func (h *tenantHook) answer(status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = status
}

func (h *tenantHook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil { // the sender hung up
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	records := identities(body)
	refused := slices.ContainsFunc(records, func(r identity) bool { return strings.Contains(r.subject, h.refused) })
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.first) < 100 && len(body) < 64<<10 { // a schema takes long for megabytes
		h.first = append(h.first, asyncapi.Message{Headers: map[string]string{"content-type": r.Header.Get("Content-Type")}, Body: body})
	}
	switch {
	case h.gone:
		h.turned++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case refused && h.status == 0:
		h.mu.Unlock()
		defer h.mu.Lock()
		select {
		case <-r.Context().Done():
		case <-h.closing:
		}
		return
	case refused && h.status/100 != 2:
		w.WriteHeader(h.status)
		return
	}
	for _, record := range records {
		if _, again := h.arrived[record.id]; !again {
			h.arrived[record.id] = at
		}
	}
}

type identity struct{ id, subject string }

// identities finds the events of a body. It decodes nothing: with the race detector a decoder takes seconds for megabytes, and the
// receiver would be what a test measures.
func identities(body []byte) (found []identity) {
	for _, event := range bytes.Split(body, []byte(`"specversion":"1.0","id":"`))[1:] {
		id, rest, _ := bytes.Cut(event, []byte(`"`))
		_, rest, _ = bytes.Cut(rest, []byte(`"subject":"`))
		subject, _, _ := bytes.Cut(rest, []byte(`"`))
		found = append(found, identity{string(id), string(subject)})
	}
	return found
}

// expect waits until all that was written has arrived, and returns the p99 of how long that took.
// It waits for longer than a breaker does between two probes.
func (h *tenantHook) expect(t *testing.T, name string, written []write) (p99 time.Duration) {
	t.Helper()
	var took []time.Duration
	eventually(t, 6*wide, "all good changes arrive: "+name, func() error {
		took = h.delays(written)
		if len(took) < len(written) {
			return fmt.Errorf("%d of %d", len(took), len(written))
		}
		return nil
	})
	p99 = took[len(took)*99/100]
	t.Logf("%s: p50 %v, p99 %v", name, took[len(took)/2], p99)
	return p99
}

func (h *tenantHook) delays(written []write) []time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return delays(h.arrived, written)
}

// delays returns, in order, how long the changes took that have arrived.
func delays(arrived map[string]time.Time, written []write) (took []time.Duration) {
	for _, w := range written {
		if at, ok := arrived[w.id]; ok {
			took = append(took, at.Sub(w.at))
		}
	}
	slices.Sort(took)
	return took
}

// expectTopic waits until all that was written is in the topic, and the broker has had it within most.
func expectTopic(t *testing.T, broker *kafkatest.Broker, topic string, written []write, most time.Duration) {
	t.Helper()
	read := topicReader(t, broker, cloudEvents, topic)
	eventually(t, wide, "all good changes are in the topic", func() error {
		stored := map[string]bool{}
		for _, record := range read() {
			stored[record.ID] = true
		}
		for _, w := range written {
			if !stored[w.id] {
				return errors.New("there is none of " + w.id)
			}
		}
		return nil
	})
	stored, err := broker.ReadAll(within(t, wide), topic)
	if err != nil {
		t.Fatal(err)
	}
	arrived := map[string]time.Time{}
	for _, record := range slices.Backward(stored) { // the first of an id counts
		for _, r := range identities(record.Value) {
			arrived[r.id] = record.Timestamp
		}
	}
	took := delays(arrived, written)
	p99 := took[len(took)*99/100]
	t.Logf("kafka: p50 %v, p99 %v", took[len(took)/2], p99)
	if p99 > most {
		t.Errorf("kafka: the p99 of good changes is %v, want at most %v", p99, most)
	}
}
