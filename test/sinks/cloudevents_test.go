package sinks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/webhook"
)

// eventCase is a delta, and the event that a consumer must see: attributes in the SDK's types, and data.
type eventCase struct {
	delta      *delta.Delta
	attributes map[string]any
	knative    map[string]any // those that are others in that profile; nil: not there
	data       string
	object     string
}

var observed = time.Date(2026, 11, 21, 0, 12, 3, 123456000, time.UTC)

func eventCases(t *testing.T) []eventCase {
	t.Helper()
	const (
		web  = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","uid":"4f0c","resourceVersion":"236"},"spec":{"text":"\"ä\" <b> 世界"}}`
		role = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"ops: \"Küche\" 100 & more","uid":"77","resourceVersion":"9"}}`
	)
	object := func(text string) *delta.Object {
		parsed, err := delta.NewObject([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	roles := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	common := func(id, kind, key, sequence string) map[string]any {
		return map[string]any{
			"specversion": "1.0", "id": id, "source": "/clusters/test", "type": "dev.kubeferry.resource." + kind, "subject": key,
			"time": observed, "datacontenttype": "application/json", "partitionkey": "test" + key, "sequence": sequence,
			"pipeline": "events",
		}
	}
	webPath := "/apis/apps/v1/namespaces/shop/deployments/web"
	rolePath := "/apis/rbac.authorization.k8s.io/v1/clusterroles/ops: \"Küche\" 100 & more"
	ofWeb := func(attributes map[string]any) map[string]any {
		maps.Copy(attributes, map[string]any{"kind": "Deployment", "namespace": "shop", "name": "web"})
		return attributes
	}
	ofRole := common("test/77/9/DELETED", "deleted", rolePath, "00000000000000000009")
	maps.Copy(ofRole, map[string]any{"kind": "ClusterRole", "name": "ops: \"Küche\" 100 & more"})
	return []eventCase{
		{
			delta:      &delta.Delta{Type: delta.Added, Resource: deployments, Object: object(web), Sequence: 236, Snapshot: true},
			attributes: ofWeb(common("test/4f0c/236/ADDED", "added", webPath, "00000000000000000236")),
			knative:    map[string]any{"type": "dev.knative.apiserver.resource.add", "apiversion": "apps/v1", "snapshot": true},
			data:       `{"type":"ADDED","resource":{"group":"apps","version":"v1","resource":"deployments"},"object":` + web + `,"snapshot":true}`,
			object:     web,
		},
		{
			delta: &delta.Delta{
				Type: delta.Modified, Resource: deployments, Object: object(web), Sequence: 236,
				Difference: &delta.Difference{Known: true, OldResourceVersion: "235", Patch: []byte(`[{"op":"remove","path":"/spec/x"}]`)},
			},
			attributes: ofWeb(common("test/4f0c/236/MODIFIED", "modified", webPath, "00000000000000000236")),
			knative:    map[string]any{"type": "dev.knative.apiserver.resource.update", "apiversion": "apps/v1"},
			data:       `{"type":"MODIFIED","resource":{"group":"apps","version":"v1","resource":"deployments"},"object":` + web + `,"patch":[{"op":"remove","path":"/spec/x"}],"oldResourceVersion":"235"}`,
			object:     web,
		},
		{
			delta:      &delta.Delta{Type: delta.Deleted, Resource: roles, Object: object(role), Sequence: 9, Inferred: true, FinalStateUnknown: true},
			attributes: ofRole,
			knative: map[string]any{
				"type":       "dev.knative.apiserver.resource.delete",
				"subject":    "/apis/rbac.authorization.k8s.io/v1/namespaces//clusterroles/ops: \"Küche\" 100 & more",
				"apiversion": "rbac.authorization.k8s.io/v1", "inferred": true, "finalstateunknown": true,
			},
			data:   `{"type":"DELETED","resource":{"group":"rbac.authorization.k8s.io","version":"v1","resource":"clusterroles"},"object":` + role + `,"inferred":true,"finalStateUnknown":true}`,
			object: role,
		},
	}
}

// TestCloudEventsSDK has the CloudEvents SDK read what a pipeline sends to a webhook, and compares every attribute.
func TestCloudEventsSDK(t *testing.T) {
	for _, format := range []shape.Format{shape.FormatCloudEvents, shape.FormatCloudEventsBinary} {
		for _, profile := range []shape.Profile{"", shape.ProfileKnative} {
			for _, records := range []int{1, 10} {
				if format == shape.FormatCloudEventsBinary && records > 1 {
					continue // the configuration refuses it
				}
				t.Run(fmt.Sprintf("%s %s by %d", format, profile, records), func(t *testing.T) {
					consumer := newConsumer(t, records > 1)
					config := webhook.NewConfig()
					config.URL, config.Batch.MaxRecords, config.Batch.Linger = consumer.server.URL, records, 50*time.Millisecond
					p := runPipeline(t, config, pipeline.Options{Options: shape.Options{Format: format, Profile: profile}, DeadLetter: refuseLetters{}})
					cases := eventCases(t)
					for _, c := range cases {
						c.delta.Observed = observed
						if err := handOver(t.Context(), p, c.delta); err != nil {
							t.Fatal(err)
						}
					}
					gap := &delta.Gap{
						Watch: "8d3f", Resource: cases[0].delta.Resource, Namespace: "shop", From: "1", To: "9", Reason: "Expired", Observed: observed,
					}
					if err := handOverGap(t.Context(), p, gap); err != nil {
						t.Fatal(err)
					}
					if left := p.Drain(within(t, 30*time.Second)); left > 0 {
						t.Fatalf("%d records were not taken: %v", left, consumer.faults())
					}
					for _, c := range cases {
						consumer.check(t, &c, format, profile)
					}
					got := consumer.event("test/8d3f/1-9/GAP")
					if got == nil || got.Type() != "dev.kubeferry.gap" || got.Subject() != "/apis/apps/v1/namespaces/shop/deployments" {
						t.Errorf("got gap %v", got)
					}
				})
			}
		}
	}
}

// consumer reads requests with the SDK. One that it cannot read is refused for good.
type consumer struct {
	server *httptest.Server

	mu     sync.Mutex // guards what follows
	events map[string]event.Event
	errs   []error
}

func newConsumer(t *testing.T, batches bool) *consumer {
	t.Helper()
	c := &consumer{events: map[string]event.Event{}}
	c.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var events []event.Event
		var err error
		if batches {
			events, err = cehttp.NewEventsFromHTTPRequest(r)
		} else {
			var one *event.Event
			if one, err = cehttp.NewEventFromHTTPRequest(r); err == nil {
				events = append(events, *one)
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, e := range events {
			if err == nil {
				err = e.Validate()
			}
			c.events[e.ID()] = e
		}
		if err != nil {
			c.errs = append(c.errs, err)
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(c.server.Close)
	return c
}

func (c *consumer) faults() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.errs
}

func (c *consumer) event(id string) *event.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.events[id]
	if !ok {
		return nil
	}
	return &e
}

// check compares the event of c with what was received.
func (c *consumer) check(t *testing.T, want *eventCase, format shape.Format, profile shape.Profile) {
	t.Helper()
	id := want.attributes["id"].(string)
	e := c.event(id)
	if e == nil {
		t.Errorf("%s did not arrive: %v", id, c.faults())
		return
	}
	want.check(t, e, format, profile, url.PathUnescape)
}

// check compares an event with what was read by the SDK; decode is what the SDK leaves to do in binary mode.
func (c *eventCase) check(t *testing.T, e *event.Event, format shape.Format, profile shape.Profile, decode func(string) (string, error)) {
	t.Helper()
	got := map[string]any{
		"specversion": e.SpecVersion(), "id": e.ID(), "source": e.Source(), "type": e.Type(), "subject": e.Subject(),
		"time": e.Time(), "datacontenttype": e.DataContentType(),
	}
	for name, value := range e.Extensions() {
		got[name] = value
	}
	attributes := map[string]any{}
	for name, value := range c.attributes {
		attributes[name] = value
	}
	data := c.data
	if profile == shape.ProfileKnative {
		data = c.object
		for name, value := range c.knative {
			attributes[name] = value
		}
	}
	if format == shape.FormatCloudEventsBinary {
		for name, value := range attributes {
			if value == true {
				attributes[name] = "true" // headers have no types
			}
		}
		// The SDK (v2.16) leaves values percent-encoded, against the bindings of HTTP and NATS, §3.1.3.2.
		for name, value := range got {
			if text, ok := value.(string); ok {
				decoded, err := decode(text)
				if err != nil {
					t.Fatal(err)
				}
				got[name] = decoded
			}
		}
	}
	if !reflect.DeepEqual(got, attributes) {
		t.Errorf("%s: got attributes %v, want %v", e.ID(), got, attributes)
	}
	if !bytes.Equal(compact(t, e.Data()), compact(t, []byte(data))) {
		t.Errorf("%s: got data %s, want %s", e.ID(), e.Data(), data)
	}
}

func compact(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// runPipeline runs a pipeline to a sink until the test ends; options need no more than a format and a dead letter.
func runPipeline(t *testing.T, config sinks.Config, options pipeline.Options) *pipeline.Pipeline {
	t.Helper()
	options.Name, options.Cluster, options.MaxBytes = "events", "test", 4<<20
	options.Retry = pipeline.Retry{Initial: 10 * time.Millisecond, Max: time.Second}
	options.Sink, options.SinkName, options.Limits = openSink(t, config), "hook", config.Limits()
	p := pipeline.New(options, pipeline.NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(logWriter{t}, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	return p
}

// refuseLetters makes a record that was refused for good wait, where a test shall see it.
type refuseLetters struct{}

func (refuseLetters) Write(_ context.Context, letters []pipeline.Letter) (int, error) {
	return 0, fmt.Errorf("%s shall not be refused: %s", letters[0].Record.ID, letters[0].Error)
}
