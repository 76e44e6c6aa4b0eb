package examples_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/consume"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/webhook"
	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
)

const (
	namespace  = "shop"
	topic      = "k8s"
	partitions = 3
	// ghost is an object that a consumer has and that does not exist, as one is whose deletion was never sent.
	ghost = "/api/v1/namespaces/shop/configmaps/ghost"
)

var watched = []load.Resource{
	load.ConfigMaps(), load.Events(), load.Widgets(), {GVR: rbacv1.SchemeGroupVersion.WithResource("roles")},
}

// TestExamples runs all examples under a load and a series of faults: of kubeferry, of the brokers, of the cluster's history, of a CRD,
// and of the examples themselves. At the end the table of each is what the API server lists, though no snapshot was requested since the last
// fault, and no change is twice in its log. The soak has 20,000 changes.
func TestExamples(t *testing.T) {
	changes, soak := 3000, os.Getenv("KUBEFERRY_SOAK") != ""
	if soak {
		changes = 20_000
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	prepareCluster(t, plane.Config())
	broker, bus := kafkatest.Start(t), natstest.StartCluster(t, 1)
	broker.CreateTopic(topic, partitions)

	secret := filepath.Join(t.TempDir(), "secret")
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	if err := os.WriteFile(secret, []byte("whsec_"+base64.StdEncoding.EncodeToString(key)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var consumers, members []*consumer
	var hooks []*witness
	for _, language := range []string{"go", "python"} {
		port, err := freeport.Pick()
		if err != nil {
			t.Fatal(err)
		}
		hooks = append(hooks, newWitness(t, freeport.Addr(port)))
		consumers = append(consumers,
			newConsumer(t, language, "kafka", "brokers", broker.Addr(), "topic", topic, "group", language),
			newConsumer(t, language, "jetstream", "url", bus.URLs()[0], "stream", topic, "consumer", language),
			newConsumer(t, language, "webhook", "listen", freeport.Addr(port), "secret", secret),
		)
	}
	consumers = append(consumers, newConsumer(t, "java", "kafka", "brokers", broker.Addr(), "topic", topic, "group", "java"))
	for _, c := range slices.Clone(consumers) {
		// The members of a group share the partitions: none has all of them. One of Java takes much of a machine.
		if strings.HasSuffix(c.name, "kafka") && (c.name != "java kafka" || soak) {
			members = append(members, c.member())
		}
	}
	consumers = append(consumers, members...)
	inOrder := newOrdered(t, bus.URLs()[0])

	pipelines := []string{"kafka", "jetstream", "hook-go", "hook-python"}
	both := newExporters(t, plane, namespace, fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps, v1/events, example.com/v1/widgets, rbac.authorization.k8s.io/v1/roles], namespaces: {include: [%s]}}]
pipelines:
  - {name: kafka, sink: kafka}
  - {name: jetstream, sink: jetstream, format: cloudevents-binary}
  - {name: hook-go, sink: hook-go}
  - {name: hook-python, sink: hook-python}
sinks:
  - {name: kafka, kafka: {brokers: [%q], topic: %s}}
  - {name: jetstream, nats: {urls: [%q], subject: "k8s.{group}.{resource}.{namespace}.{name}", stream: {name: %s, create: true}}}
  - {name: hook-go, webhook: {url: %q, signature: {secretFile: %q}, batch: {maxRecords: 100}}}
  - {name: hook-python, webhook: {url: %q, signature: {secretFile: %q}, batch: {maxRecords: 100}}}
`, namespace, broker.Addr(), topic, bus.URLs()[0], topic, hooks[0].server.URL, secret, hooks[1].server.URL, secret))
	both[0].Start()
	leader(t, [2]*exporter{both[0], both[0]}, (*exporter).leads) // before there is another one to choose
	both[1].Start()
	leader(t, both, (*exporter).inSync)
	eventually(t, "the stream", func() error {
		_, err := bus.ReadAll(t.Context(), topic)
		return err
	})
	for _, c := range consumers {
		c.Start()
	}
	inOrder.Start()

	for _, c := range consumers {
		if strings.HasSuffix(c.name, "webhook") {
			c.expectForgeryRefused()
		}
	}

	// Each fault has its share of the changes: the load waits where the faults have not come so far.
	var written, allowed atomic.Int64
	allowed.Store(int64(changes / 10))
	ended := make(chan error, 1)
	go func() {
		_, err := load.Run(t.Context(), plane.Config(), load.Options{
			Resources: watched[:2], Namespaces: []string{namespace}, Objects: 200, Operations: changes, Concurrency: 8, Seed: 18,
			OnWrite: func(done int64) {
				written.Store(done)
				for done >= allowed.Load() && done < int64(changes) && t.Context().Err() == nil {
					time.Sleep(5 * time.Millisecond)
				}
			},
		})
		ended <- err
	}()
	step := 0
	begun := time.Now()
	next := func(fault string) {
		t.Helper()
		step++
		eventually(t, "the load goes on", func() error {
			if n := written.Load(); n < int64(changes*step/10) {
				return fmt.Errorf("%d of %d", n, changes)
			}
			return nil
		})
		allowed.Store(int64(changes * (step + 1) / 10))
		t.Logf("%v, %d changes: %s", time.Since(begun).Round(time.Second), written.Load(), fault)
	}

	next("the leader is killed, and another one leads")
	killed, _ := leader(t, both, (*exporter).inSync)
	killed.process.Kill()
	killed.Start()

	next("one member of each group is killed, and the other one gets all partitions; then all examples are killed")
	for _, c := range members {
		expectMembers(t, broker, c.language(), 2)
		c.process.Kill()
	}
	for _, c := range members {
		expectMembers(t, broker, c.language(), 1)
		c.Start()
	}
	for _, c := range consumers {
		c.Restart()
	}
	inOrder.kill()
	inOrder.Start()

	next("the brokers are killed")
	bus.Kill(0)
	broker.Restart()
	bus.Revive(0)

	next("snapshots on demand")
	leads, _ := leader(t, both, (*exporter).inSync)
	if err := leads.snapshots(pipelines); err != nil {
		t.Error(err)
	}

	next("both replicas are killed, and the history is refused")
	for _, e := range both {
		e.process.Kill()
	}
	next("the history is compacted")
	if _, err := plane.CompactEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := plane.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, e := range both {
		e.Start()
	}
	leader(t, both, (*exporter).inSync)

	next("the examples are killed while snapshots run, and miss that an object is gone; those of Kafka and JetStream read all again")
	leads, _ = leader(t, both, (*exporter).inSync)
	list := make(chan struct{})
	var held atomic.Int64
	leads.gateway.Use(func(r *http.Request) *proxy.Fault {
		if query := r.URL.Query(); query.Has("limit") && query.Get("limit") != "1" && !query.Has("watch") { // what a snapshot lists
			held.Add(1)
			return &proxy.Fault{Hold: list}
		}
		return nil
	})
	snapshots := make(chan error, 1)
	go func() { snapshots <- leads.snapshots(pipelines) }()
	eventually(t, "the snapshots run", func() error {
		if n := held.Load(); n < int64(len(watched)*len(pipelines)) {
			return fmt.Errorf("%d lists", n)
		}
		return nil
	})
	for _, c := range consumers {
		c.expectRunning()
		c.process.Kill()
	}
	inOrder.kill()
	inOrder.plant()
	inOrder.Start()
	durables := []string{"go-again", "python-again"}
	for _, durable := range durables {
		take(t, bus.URLs()[0], topic, durable, 200)
	}
	for _, c := range consumers {
		c.plant()
		for n, arg := range c.options.Args {
			if slices.Contains([]string{"go", "python", "java"}, arg) {
				c.options.Args[n] = arg + "-again" // another group, or another durable consumer
			}
		}
		c.Start()
	}
	leads.gateway.Use(nil)
	close(list)
	if err := <-snapshots; err != nil {
		t.Error(err)
	}

	next("the CRD is removed, and made again")
	if err := load.RemoveWidgets(t.Context(), plane.Config()); err != nil {
		t.Fatal(err)
	}
	if err := load.InstallWidgets(t.Context(), plane.Config()); err != nil {
		t.Fatal(err)
	}
	createWidgets(t, plane.Config(), 10, 30)

	next("both replicas are killed, and their states are lost, and that an object is gone")
	expectForgotten(t, consumers, inOrder)
	for _, e := range both {
		e.process.Kill()
	}
	for _, c := range consumers {
		c.plant()
	}
	inOrder.plant()
	loseStates(t, plane, namespace, both)
	for _, e := range both {
		e.Start()
	}
	leader(t, both, (*exporter).inSync)

	next("the load ends")
	allowed.Store(int64(changes))
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	expectForgotten(t, consumers, inOrder) // no snapshot was requested since
	t.Logf("%v: the load has ended", time.Since(begun).Round(time.Second))
	want := listed(t, plane.Config())
	topicHas, streamHas := sentTo(t, topicMessages(t, broker)), sentTo(t, streamMessages(t, bus))
	delivered := map[string]sent{
		"go kafka": topicHas, "python kafka": topicHas, "java kafka": topicHas, "go jetstream": streamHas, "python jetstream": streamHas,
		"go webhook": sentTo(t, hooks[0].messages()), "python webhook": sentTo(t, hooks[1].messages()),
	}
	for _, durable := range durables {
		expectRedelivered(t, bus.URLs()[0], topic, durable, 200)
	}
	late := newOrdered(t, bus.URLs()[0]) // which has an empty table
	late.Start()
	for name, o := range map[string]*ordered{"an ordered consumer": inOrder, "an ordered consumer that begins now": late} {
		eventually(t, name, func() error { return o.holds(want) })
	}
	for _, c := range consumers {
		sent := delivered[strings.Join(strings.Fields(c.name)[:2], " ")]
		if len(sent) < changes/2 { // the rest may be what a gap stands for
			t.Errorf("%s: %d changes were sent, of %d", c.name, len(sent), changes)
		}
		eventually(t, c.name, func() error {
			c.expectRunning()
			return c.holds(want, sent)
		})
		c.expectLog()
	}
	t.Logf("%v: %d objects in all tables", time.Since(begun).Round(time.Second), len(want))
}

// prepareCluster makes a namespace with 20 widgets, and a role whose name a header does not hold as it is.
func prepareCluster(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: `100 "größte"`}}
	if _, err := client.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := load.InstallWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	createWidgets(t, config, 0, 20)
}

// createWidgets creates those with the numbers from one to another.
func createWidgets(t *testing.T, config *rest.Config, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		_, err := load.Run(t.Context(), config, load.Options{
			Resources: []load.Resource{load.Widgets()}, Namespaces: []string{namespace}, Objects: 1, Operations: 1, Prefix: fmt.Sprint("w", n),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// listed is what the API server lists: the subject, uid and version of each object.
func listed(t *testing.T, config *rest.Config) []string {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, resource := range watched {
		list, err := client.Resource(resource.GVR).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		prefix := "/apis/" + resource.GVR.GroupVersion().String()
		if resource.GVR.Group == "" {
			prefix = "/api/" + resource.GVR.Version
		}
		for _, item := range list.Items {
			subject := fmt.Sprintf("%s/namespaces/%s/%s/%s", prefix, namespace, resource.GVR.Resource, item.GetName())
			all = append(all, strings.Join([]string{subject, string(item.GetUID()), item.GetResourceVersion()}, " "))
		}
	}
	slices.Sort(all)
	return all
}

// expectForgeryRefused sends a receiver a record with a signature of another key.
func (c *consumer) expectForgeryRefused() {
	c.t.Helper()
	body := structured(ghost)
	status := c.post([]byte("another key of some thirty bytes"), http.Header{"Content-Type": {"application/cloudevents+json"}}, body)
	if status != http.StatusUnauthorized {
		c.t.Fatalf("%s: a forged signature: status %d", c.name, status)
	}
}

// structured is an event about the creation of a ConfigMap.
func structured(subject string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":"examples/u/9/ADDED","source":"/clusters/examples","type":"dev.kubeferry.resource.added",
"subject":%q,"time":"2026-11-21T00:12:03Z","datacontenttype":"application/json","sequence":"%020d","data":%s}`, subject, 9, created)
}

// created is the data of such an event.
const created = `{"type":"ADDED","resource":{"group":"","version":"v1","resource":"configmaps"},
"object":{"metadata":{"uid":"u","resourceVersion":"9","namespace":"shop"}}}`

// post sends a receiver a signed request, once it listens, and returns the status.
func (c *consumer) post(key []byte, header http.Header, body string) (status int) {
	c.t.Helper()
	webhook, err := standardwebhooks.NewWebhookRaw(key)
	if err != nil {
		c.t.Fatal(err)
	}
	now := time.Now()
	signature, err := webhook.Sign("p/1", now, []byte(body))
	if err != nil {
		c.t.Fatal(err)
	}
	address := c.options.Args[slices.IndexFunc(c.options.Args, func(arg string) bool { return strings.HasSuffix(arg, "-listen") })+1]
	eventually(c.t, c.name+" listens", func() error {
		req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://"+address, strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header = header.Clone()
		req.Header.Set("webhook-id", "p/1")
		req.Header.Set("webhook-timestamp", fmt.Sprint(now.Unix()))
		req.Header.Set("webhook-signature", signature)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err // it has not begun to listen
		}
		status = resp.StatusCode
		return resp.Body.Close()
	})
	return status
}

// TestReceiversReadEveryForm: an event whose attributes are headers, percent-encoded; one that is in the body as a whole; a batch. What
// is no event is refused.
func TestReceiversReadEveryForm(t *testing.T) {
	key := []byte("a key of some thirty-two bytes..")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("whsec_"+base64.StdEncoding.EncodeToString(key)), 0o600); err != nil {
		t.Fatal(err)
	}
	emptySecret := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(emptySecret, []byte("whsec_\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := http.Header{
		"Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"examples/u/9/ADDED"}, "Ce-Source": {"/clusters/examples"},
		"Ce-Type": {"dev.kubeferry.resource.added"}, "Ce-Subject": {"a%20%22gr%C3%B6%C3%9Fte%22%20"}, "Ce-Time": {"2026-11-21T00:12:03Z"},
		"Ce-Sequence": {fmt.Sprintf("%020d", 9)},
	}
	for _, language := range []string{"go", "python"} {
		t.Run(language, func(t *testing.T) {
			port, err := freeport.Pick()
			if err != nil {
				t.Fatal(err)
			}
			c := newConsumer(t, language, "webhook", "listen", freeport.Addr(port), "secret", secret)
			c.Start()
			for _, sent := range []struct {
				header http.Header
				body   string
				status int
			}{
				{binary, created, http.StatusNoContent},
				{http.Header{"Content-Type": {"application/cloudevents+json"}}, structured("b"), http.StatusNoContent},
				{
					http.Header{"Content-Type": {"application/cloudevents-batch+json"}},
					"[" + structured("c") + "," + structured("d") + "]",
					http.StatusNoContent,
				},
				{http.Header{"Content-Type": {"application/cloudevents-batch+json"}}, `[{}]`, http.StatusBadRequest},
				{http.Header{"Content-Type": {"application/cloudevents+json"}}, `{}`, http.StatusBadRequest},
			} {
				if got := c.post(key, sent.header, sent.body); got != sent.status {
					t.Errorf("%v %s: status %d, want %d", sent.header, sent.body, got, sent.status)
				}
			}
			if language == "go" {
				if got := c.post(key, http.Header{}, strings.Repeat("x", 16<<20+1)); got != http.StatusRequestEntityTooLarge {
					t.Errorf("too large a body: status %d", got)
				}
			}
			empty := newConsumer(t, language, "webhook", "listen", freeport.Addr(port), "secret", emptySecret)
			empty.Start()
			empty.expectEnd("the secret is empty")
			rows, err := c.rows(`SELECT subject FROM objects ORDER BY 1`)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := fmt.Sprint(rows), `[[a "größte" ] [b] [c] [d]]`; got != want {
				t.Errorf("the table has %s, want %s", got, want)
			}
		})
	}
}

// TestReceiversVerify: with a secret made by openssl rand -base64 32, as docs/webhooks.md advises, with and without whsec_ in front, the
// Standard Webhooks libraries of Go and Python verify what the sink signs, and refuse what another secret has signed.
func TestReceiversVerify(t *testing.T) {
	put := func(content string) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	random := func() string {
		key := make([]byte, 32)
		_, _ = rand.Read(key)
		return base64.StdEncoding.EncodeToString(key)
	}
	bare := random()
	right := map[string]string{"bare": put(bare), "with whsec_": put("whsec_" + bare)}
	wrong := put(random())
	for _, language := range []string{"go", "python"} {
		for form, secret := range right {
			t.Run(language+" "+form, func(t *testing.T) {
				port, err := freeport.Pick()
				if err != nil {
					t.Fatal(err)
				}
				c := newConsumer(t, language, "webhook", "listen", freeport.Addr(port), "secret", secret)
				c.Start()
				c.post(nil, http.Header{}, "") // once it listens
				record := sinks.Record{
					ID: "examples/u/9/ADDED", DedupID: "p/examples/u/9/ADDED", Key: "a", ContentType: "application/cloudevents+json", Body: []byte(structured("a")),
				}
				deliver := func(secret string) error {
					config := webhook.NewConfig()
					config.URL, config.Signature = "http://"+freeport.Addr(port), &webhook.Signature{SecretFile: secret}
					sink, err := config.Open(t.Context(), sinks.Env{Name: "hook", Logger: slog.New(slog.DiscardHandler)})
					if err != nil {
						t.Fatal(err)
					}
					defer sink.Close(t.Context())
					return sink.Deliver(t.Context(), []sinks.Record{record})
				}
				for sent, secret := range right {
					if err := deliver(secret); err != nil {
						t.Errorf("the secret of the sink is %s: %v", sent, err)
					}
				}
				if class := sinks.Classify(deliver(wrong)); class == nil || class.Reason != sinks.ReasonUnauthorized {
					t.Errorf("another secret: got %v, want a refusal", class)
				}
			})
		}
	}
}

// plant puts an object into the table that does not exist, as one is whose deletion was never sent.
func (c *consumer) plant() {
	c.t.Helper()
	pipeline := strings.Fields(c.name)[1]
	if pipeline == "webhook" {
		pipeline = "hook-" + c.language()
	}
	_, err := c.rows(fmt.Sprintf(`INSERT OR REPLACE INTO objects
(cluster, pipeline, subject, resource, namespace, uid, version, sequence, deleted, snapshot_sequence, object)
VALUES ('examples', '%s', '%s', 'v1/configmaps', '%s', 'u', '1', '%020d', 0, '', '{}') RETURNING 1`, pipeline, ghost, namespace, 1))
	if err != nil {
		c.t.Fatal(err)
	}
}

// expectForgotten waits until no table has the planted object any more.
func expectForgotten(t *testing.T, consumers []*consumer, inOrder *ordered) {
	t.Helper()
	for _, c := range consumers {
		eventually(t, c.name+" has forgotten what is gone", func() error {
			rows, err := c.rows(`SELECT subject FROM existing WHERE subject LIKE '%/ghost'`)
			if err == nil && len(rows) > 0 {
				err = fmt.Errorf("it has %v", rows)
			}
			return err
		})
	}
	inOrder.expectForgotten()
}

// sent are the records that a transport has: those of each id, but for the ones of snapshots and differences, which may be of a state that
// is known. A deletion that was sent before a kill may be inferred after it, under another id.
type sent map[string][]consume.Record

// message is what a transport has.
type message struct {
	header func(string) string
	body   []byte
}

func sentTo(t *testing.T, messages []message) sent {
	t.Helper()
	records := sent{}
	marks := 0
	for _, m := range messages {
		decoded, err := consume.Decode(m.header, m.body)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range decoded {
			switch {
			case r.Type == consume.Mark:
				marks++
			case !r.Snapshot && !r.Inferred:
				records[r.ID] = append(records[r.ID], r)
			}
		}
	}
	t.Logf("%d records were sent, of %d changes, and %d marks", len(messages), len(records), marks)
	return records
}

func topicMessages(t *testing.T, broker *kafkatest.Broker) (messages []message) {
	t.Helper()
	records, err := broker.ReadAll(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		messages = append(messages, message{func(name string) string { return r.Headers[name] }, r.Value})
	}
	return messages
}

func streamMessages(t *testing.T, bus *natstest.Cluster) (messages []message) {
	t.Helper()
	stored, err := bus.ReadAll(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range stored {
		messages = append(messages, message{m.Header.Get, m.Data})
	}
	return messages
}

// witness stands before a receiver of webhooks, and keeps what the receiver accepts: that has to be in its log.
type witness struct {
	server   *httptest.Server
	mu       sync.Mutex
	accepted []message
}

func newWitness(t *testing.T, receiver string) *witness {
	w := &witness{}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: receiver})
	forward.ErrorHandler = func(answer http.ResponseWriter, _ *http.Request, err error) { // it was killed
		http.Error(answer, err.Error(), http.StatusBadGateway)
	}
	w.server = httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // kubeferry was killed
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		received := httptest.NewRecorder()
		forward.ServeHTTP(received, req)
		if received.Code/100 == 2 {
			w.mu.Lock()
			w.accepted = append(w.accepted, message{req.Header.Get, body})
			w.mu.Unlock()
		}
		answer.WriteHeader(received.Code)
	}))
	t.Cleanup(w.server.Close)
	return w
}

func (w *witness) messages() []message {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.accepted)
}

// holds is an error unless the table is what exists, and the log has all that was sent.
func (c *consumer) holds(want []string, sent sent) error {
	rows, err := c.rows(`SELECT subject, uid, version FROM existing ORDER BY 1`)
	if err != nil {
		return err
	}
	var got []string
	for _, row := range rows {
		got = append(got, fmt.Sprint(row[0], " ", row[1], " ", row[2]))
	}
	if err := difference(got, want); err != nil {
		return err
	}
	rows, err = c.rows(`SELECT id FROM log`)
	if err != nil {
		return err
	}
	logged := map[string]bool{}
	for _, row := range rows {
		logged[row[0].(string)] = true
	}
	for id := range sent {
		if !logged[id] {
			return fmt.Errorf("%d in the log, %d were sent; missing is %s", len(logged), len(sent), id)
		}
	}
	return nil
}

// difference is an error unless a table has what exists, in any order.
func difference(got, want []string) error {
	slices.Sort(got)
	if slices.Equal(got, want) {
		return nil
	}
	missing := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return slices.Contains(got, s) })
	surplus := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return slices.Contains(want, s) })
	return fmt.Errorf("%d in the table, %d exist; missing are %q, surplus %q", len(got), len(want), missing[:min(5, len(missing))], surplus[:min(5, len(surplus))])
}

// expectLog checks that no change is twice in the log, and that it has a gap of each resource whose history was refused.
func (c *consumer) expectLog() {
	c.t.Helper()
	c.expectRunning()
	rows, err := c.rows(`SELECT id, subject, type FROM log`)
	if err != nil {
		c.t.Fatal(err)
	}
	ids, gaps := map[string]bool{}, map[string]bool{}
	for _, row := range rows {
		id, subject, typ := row[0].(string), row[1].(string), row[2].(string)
		if ids[id] {
			c.t.Errorf("%s: twice in the log: %s", c.name, id)
		}
		ids[id] = true
		if typ == oracle.Gap {
			gaps[subject[strings.LastIndex(subject, "/")+1:]] = true
		}
	}
	for _, resource := range []string{"configmaps", "events", "widgets"} {
		if !gaps[resource] {
			c.t.Errorf("%s: no gap of %s: its history was refused", c.name, resource)
		}
	}
	c.t.Logf("%s: %d in the log", c.name, len(rows))
}
