package sinks_test

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/cloudevents/sdk-go/protocol/kafka_sarama/v2"
	cenats "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	natssink "github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

// interopFormats are what consumers of Kafka and NATS decode with the CloudEvents SDK.
var interopFormats = []shape.Format{shape.FormatCloudEvents, shape.FormatCloudEventsBinary}

const gapID = "test/8d3f/1-9/GAP"

// sendEvents sends the events of [eventCases] and a gap through a pipeline of its own.
func sendEvents(t *testing.T, config sinks.Config, format shape.Format) []eventCase {
	t.Helper()
	p := runPipeline(t, config, pipeline.Options{Options: shape.Options{Format: format}, DeadLetter: refuseLetters{}})
	cases := eventCases(t)
	for _, c := range cases {
		c.delta.Observed = observed
		if err := handOver(t.Context(), p, c.delta); err != nil {
			t.Fatal(err)
		}
	}
	if err := handOverGap(t.Context(), p, &delta.Gap{
		Watch: "8d3f", Resource: cases[0].delta.Resource, Namespace: "shop", From: "1", To: "9", Reason: "Expired", Observed: observed,
	}); err != nil {
		t.Fatal(err)
	}
	if left := p.Drain(within(t, 30*time.Second)); left > 0 {
		t.Fatalf("%d records were not taken", left)
	}
	return cases
}

// checkEvents compares what a client has read, by id, with what was sent.
func checkEvents(t *testing.T, cases []eventCase, got map[string]*event.Event, format shape.Format, decode func(string) (string, error)) {
	t.Helper()
	for _, c := range cases {
		id := c.attributes["id"].(string)
		if got[id] == nil {
			t.Errorf("%s was not read", id)
			continue
		}
		c.check(t, got[id], format, "", decode)
	}
	if gap := got[gapID]; gap == nil || gap.Type() != "dev.kubeferry.gap" {
		t.Errorf("got gap %v", gap)
	}
	if len(got) != len(cases)+1 {
		t.Errorf("got %d events, want %d", len(got), len(cases)+1)
	}
}

// toEvent decodes a message as the SDK's receivers do.
func toEvent(t *testing.T, message binding.Message) *event.Event {
	t.Helper()
	e, err := binding.ToEvent(t.Context(), message)
	if err == nil {
		err = e.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// testKafkaInterop reads what a pipeline sent with franz-go and with Kafka's console consumer, and decodes it with the
// CloudEvents SDK.
func testKafkaInterop(t *testing.T, broker *kafkaServer) {
	t.Helper()
	for _, format := range interopFormats {
		topic := "interop-" + string(format)
		const partitions = 3
		broker.CreateTopic(topic, partitions)
		config := kafkaConfig(topic, broker.Addr())
		config.Tombstones = true
		cases := sendEvents(t, config, format)
		n := len(cases) + partitions + 1 // a gap in each, and the tombstone of the DELETED

		for client, read := range map[string]func() ([]kafkatest.Record, error){
			"franz-go":         func() ([]kafkatest.Record, error) { return broker.ReadAll(within(t, 30*time.Second), topic) },
			"console consumer": func() ([]kafkatest.Record, error) { return broker.ReadConsole(within(t, time.Minute), topic, n) },
		} {
			t.Run(client+" "+string(format), func(t *testing.T) {
				records, err := read()
				if err != nil || len(records) != n {
					t.Fatalf("got %d records and %v, want %d", len(records), err, n)
				}
				got := map[string]*event.Event{}
				deleted := ""
				for _, r := range records {
					if r.Value == nil {
						if string(r.Key) != deleted {
							t.Errorf("got a tombstone for %s, not behind its DELETED", r.Key)
						}
						continue
					}
					e := kafkaEvent(t, r)
					got[e.ID()] = e
					if key := e.Extensions()["partitionkey"]; key != string(r.Key) {
						t.Errorf("%s: got key %q, want its partitionkey %q", e.ID(), r.Key, key)
					}
					if deleted = ""; strings.HasSuffix(e.Type(), ".deleted") {
						deleted = string(r.Key)
					}
				}
				checkEvents(t, cases, got, format, func(value string) (string, error) { return value, nil })
			})
		}
	}
}

func kafkaEvent(t *testing.T, r kafkatest.Record) *event.Event {
	t.Helper()
	message := &sarama.ConsumerMessage{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value}
	for name, value := range r.Headers {
		message.Headers = append(message.Headers, &sarama.RecordHeader{Key: []byte(name), Value: []byte(value)})
	}
	e := toEvent(t, kafka_sarama.NewMessageFromConsumerMessage(message))
	for _, own := range []string{"kafkatopic", "kafkapartition", "kafkaoffset"} { // the SDK's own, in binary mode
		e.SetExtension(own, nil)
	}
	return e
}

// TestExtendedNATSInterop reads what a pipeline sent with nats.go and with the nats command, and decodes it with the
// CloudEvents SDK.
func TestExtendedNATSInterop(t *testing.T) {
	srv := natstest.Start(t, nil)
	for i, format := range interopFormats {
		stream, prefix := "INTEROP-"+strconv.Itoa(i), "interop"+strconv.Itoa(i)
		config := natsConfig(hostOf(t, srv.URL()))
		config.Subject = prefix + ".{cluster}.{group}.{resource}.{namespace}.{name}"
		config.Stream = &natssink.Stream{Name: stream, Create: true}
		cases := sendEvents(t, config, format)

		for client, read := range map[string]func() []*nats.Msg{
			"nats.go":      func() []*nats.Msg { return readMessages(t, srv, stream) },
			"nats command": func() []*nats.Msg { return commandMessages(t, srv, stream, len(cases)+1) },
		} {
			t.Run(client+" "+string(format), func(t *testing.T) {
				got := map[string]*event.Event{}
				for _, m := range read() {
					e := toEvent(t, cenats.NewMessage(m))
					got[e.ID()] = e
					want := "events/" + e.ID()
					if sequence, ok := e.Extensions()["sequence"].(string); ok && e.Type() != "dev.kubeferry.gap" {
						want += "/" + sequence
					}
					if m.Header.Get(nats.MsgIdHdr) != want {
						t.Errorf("got %s %q, want %q", nats.MsgIdHdr, m.Header.Get(nats.MsgIdHdr), want)
					}
					// What names hold that a subject may not is replaced, so that tokens stay where they are.
					if want := subjectsOf(prefix)[e.ID()]; m.Subject != want {
						t.Errorf("%s: got subject %s, want %s", e.ID(), m.Subject, want)
					}
				}
				checkEvents(t, cases, got, format, url.PathUnescape)
			})
		}
	}
}

func subjectsOf(prefix string) map[string]string {
	return map[string]string{
		"test/4f0c/236/ADDED":    prefix + ".test.apps.deployments.shop.web",
		"test/4f0c/236/MODIFIED": prefix + ".test.apps.deployments.shop.web",
		"test/77/9/DELETED":      prefix + `.test.rbac_authorization_k8s_io.clusterroles._.ops:_"K__che"_100_&_more`,
		gapID:                    prefix + ".test.apps.deployments._._",
	}
}

func readMessages(t *testing.T, srv *natstest.Server, stream string) (messages []*nats.Msg) {
	t.Helper()
	for _, m := range readStream(t, srv, stream) {
		messages = append(messages, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data})
	}
	return messages
}

// commandMessages reads a stream's first n messages with `nats stream get`.
func commandMessages(t *testing.T, srv *natstest.Server, stream string, n int) (messages []*nats.Msg) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for sequence := range n {
		out, err := srv.CLI(ctx, "stream", "get", stream, strconv.Itoa(sequence+1), "--json")
		if err != nil {
			t.Fatal(err)
		}
		var stored struct {
			Subject string
			Hdrs    []byte
			Data    []byte
		}
		if err := json.Unmarshal([]byte(out), &stored); err != nil {
			t.Fatal(err)
		}
		header, err := nats.DecodeHeadersMsg(stored.Hdrs)
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, &nats.Msg{Subject: stored.Subject, Header: header, Data: stored.Data})
	}
	return messages
}
