package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestMainJob sends one load through eleven pipelines, to every kind of sink and in every format.
func TestMainJob(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	if err := load.InstallWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	prefix := unique("main")
	namespaces := []string{prefix + "-a", prefix + "-b"}
	if err := load.CreateNamespaces(t.Context(), config, append(namespaces, "other-"+prefix)...); err != nil {
		t.Fatal(err)
	}
	objectsIn(t, config, configMaps, "other-"+prefix).Create("not-ours", data("x"))

	single, batch, bare, binary := webhooktest.Start(t), webhooktest.Start(t), webhooktest.Start(t), webhooktest.Start(t)
	bus := natstest.Start(t, nil)
	core := subscribe(t, bus.URL(), "core.>")
	broker := kafkatest.Start(t)
	topics := []string{"ce.apps.deployments", "ce.core.configmaps", "ce.core.events", "ce.example.com.widgets"}
	for _, topic := range topics {
		broker.CreateTopic(topic, 3)
	}
	file := filepath.Join(t.TempDir(), "out.jsonl")

	opts := load.Options{Resources: load.All(), Namespaces: namespaces, Objects: 48, Operations: 150, Seed: 1}
	runLoad(t, config, opts)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(load.All()), Namespaces: namespaces})
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources:
  - name: all
    resources: [apps/v1/deployments, v1/configmaps, v1/events, example.com/v1/widgets]
    namespaces: {include: [%q]}
pipelines:
  - {name: single, sink: single}
  - {name: batch, sink: batch, format: json}
  - {name: bare, sink: bare, format: raw}
  - {name: binary, sink: binary, format: cloudevents-binary}
  - {name: jetstream, sink: jetstream}
  - {name: core, sink: core, format: json}
  - {name: kafka, sink: kafka}
  - {name: kafka-raw, sink: kafka-raw, format: raw}
  - {name: kafka-binary, sink: kafka-binary, format: cloudevents-binary}
  - {name: file, sink: file, format: json}
  - {name: out, sink: out}
sinks: # a busy machine is not to repeat anything
  - {name: single, webhook: {timeout: 60s, url: %q}}
  - {name: batch, webhook: {timeout: 60s, url: %q, batch: {maxRecords: 20}, compression: gzip}}
  - {name: bare, webhook: {timeout: 60s, url: %q}}
  - {name: binary, webhook: {timeout: 60s, url: %q}}
  - {name: jetstream, nats: {timeout: 60s, urls: [%q], subject: "k8s.{group}.{resource}.{namespace}.{name}", stream: {name: K8S, create: true}}}
  - {name: core, nats: {timeout: 60s, urls: [%q], subject: "core.{resource}.{name}", jetstream: false}}
  - {name: kafka, kafka: {timeout: 60s, brokers: [%q], topic: "ce.{group}.{resource}"}}
  - {name: kafka-raw, kafka: {timeout: 60s, brokers: [%q], topic: raw, createTopics: true}}
  - {name: kafka-binary, kafka: {timeout: 60s, brokers: [%q], topic: binary, createTopics: true}}
  - {name: file, file: {timeout: 60s, path: %q, sync: false}}
  - {name: out, stdout: {timeout: 60s}}
`, prefix+"-*", single.URL(), batch.URL(), bare.URL(), binary.URL(), bus.URL(), bus.URL(), broker.Addr(), broker.Addr(), broker.Addr(), file))
	e.WaitReady()

	opts.Operations, opts.Seed = 500, 2
	during := runLoad(t, config, opts)
	read := hookReader(t, single, cloudEvents)
	report := expectAll(t, watched, during, read, oracle.CompareOptions{})
	t.Log(report)
	if report.Snapshots == 0 || during.Recreated == 0 {
		t.Errorf("the load is poor: %+v", during)
	}
	expectState(t, config, read(), load.GVRs(load.All()), namespaces...)
	e.WaitSettled(wide)

	for name, read := range map[string]reader{
		"webhook batch":  hookReader(t, batch, plainJSON),
		"webhook raw":    hookReader(t, bare, raw),
		"webhook binary": hookReader(t, binary, binaryEvents("ce-")),
		"NATS JetStream": streamReader(t, bus, "K8S"),
		"NATS core":      core,
		"Kafka":          topicReader(t, broker, cloudEvents, topics...),
		"Kafka raw":      topicReader(t, broker, raw, "raw"),
		"Kafka binary":   topicReader(t, broker, binaryEvents("ce_"), "binary"),
		"file":           lineReader(t, file, oracle.ParseJSON),
		"stdout":         lineReader(t, e.stdout, oracle.ParseCloudEvent),
	} {
		t.Run(name, func(t *testing.T) {
			report := watched.Compare(read(), oracle.CompareOptions{})
			if err := report.Err(); err != nil {
				t.Error(err)
			}
			if len(report.Duplicates) > 0 {
				t.Errorf("duplicates although nothing failed: %v", report)
			}
		})
	}
	if sizes := batchSizes(batch); sizes < 2 {
		t.Errorf("no request held more than %d records", sizes)
	}
	for _, p := range e.Status().Pipelines {
		created := strings.Contains(p.LastError, "Unknown Topic") || strings.Contains(p.LastError, "Not Leader") // by its first record, and the broker leads it a little later
		if p.State != "available" || p.LastError != "" && !created {
			t.Errorf("pipeline %s: %s, last error %q", p.Name, p.State, p.LastError)
		}
	}
	e.Stop()
}

// batchSizes is the most records that a request held.
func batchSizes(r *webhooktest.Receiver) int {
	most := 0
	for _, request := range r.Requests() {
		most = max(most, len(request.Records))
	}
	return most
}

// subscribe collects core NATS messages of format json.
func subscribe(tb testing.TB, url, subject string) reader {
	tb.Helper()
	conn, err := nats.Connect(url, nats.Timeout(30*time.Second))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(conn.Close)
	var mu sync.Mutex
	var records []oracle.Record
	_, err = conn.Subscribe(subject, func(m *nats.Msg) {
		natstest.Expect(tb, m.Header, m.Data)
		record, err := oracle.ParseJSON(m.Data)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			tb.Errorf("%s: %v", m.Subject, err)
		}
		records = append(records, record)
	})
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return func() []oracle.Record {
		if err := conn.Flush(); err != nil { // what the server sent before its answer was handed over
			tb.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		return unmarked(slices.Clone(records))
	}
}

// streamReader reads a stream of CloudEvents, and checks what JetStream deduplicates by.
func streamReader(tb testing.TB, bus *natstest.Server, stream string) reader {
	return func() []oracle.Record {
		messages, err := bus.ReadAll(within(tb, wide), stream)
		if err != nil {
			tb.Fatal(err)
		}
		var records []oracle.Record
		for _, m := range messages {
			r, err := oracle.ParseCloudEvent(m.Data)
			if r.Type == oracle.Mark {
				continue
			}
			want := "jetstream/" + r.ID
			if r.Sequence > 0 {
				want += fmt.Sprintf("/%020d", r.Sequence)
			}
			// While a snapshot runs, its sequence is behind that.
			if got := m.Header.Get(nats.MsgIdHdr); err == nil && got != want && !strings.HasPrefix(got, want+"/") {
				err = fmt.Errorf("%s is %q, want %q", nats.MsgIdHdr, m.Header.Get(nats.MsgIdHdr), want)
			}
			group := r.Resource.Group
			if group == "" {
				group = "core"
			}
			tokens := []string{"k8s", strings.ReplaceAll(group, ".", "_"), r.Resource.Resource, r.Namespace, r.Name}
			if want := strings.Join(tokens, "."); err == nil && m.Subject != want {
				err = fmt.Errorf("subject %q, want %q", m.Subject, want)
			}
			if err != nil {
				tb.Error(err)
			}
			records = append(records, r)
		}
		return records
	}
}

// topicReader reads Kafka topics, and checks that each object stays on one partition.
func topicReader(tb testing.TB, broker *kafkatest.Broker, parse func(http.Header, []byte) (oracle.Record, error), topics ...string) reader {
	return func() []oracle.Record {
		stored, err := broker.ReadAll(within(tb, wide), topics...)
		if err != nil {
			tb.Fatal(err)
		}
		partitions := map[string]int32{}
		var records []oracle.Record
		for _, s := range stored {
			header := http.Header{}
			for name, value := range s.Headers {
				header.Set(name, value)
			}
			r, err := parse(header, s.Value)
			if r.Type == oracle.Mark {
				continue
			}
			if p, ok := partitions[string(s.Key)]; ok && p != s.Partition {
				err = errors.Join(err, fmt.Errorf("key %s is on partitions %d and %d", s.Key, p, s.Partition))
			}
			partitions[string(s.Key)] = s.Partition
			if want := "/" + r.Name; !strings.HasSuffix(string(s.Key), want) {
				err = errors.Join(err, fmt.Errorf("key %q of %s", s.Key, r.ID))
			}
			if err != nil {
				tb.Error(err)
			}
			records = append(records, r)
		}
		return records
	}
}
