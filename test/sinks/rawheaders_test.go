package sinks_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/webhook"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// oddNames are names that the API server takes for objects of RBAC, with the subject as a header shall have it.
var oddNames = map[string]string{
	"system:node":                          "system:node",
	"a\nb":                                 "a%0Ab",
	"a\r\nkubeferry-type: DELETED\r\nx: y": "a%0D%0Akubeferry-type:%20DELETED%0D%0Ax:%20y",
	"säure":                                "s%C3%A4ure",
	"tail ":                                "tail%20",
	"a\x7fb":                               "a%7Fb",
	"100%25":                               "100%2525",
}

// TestRawHeaders: in the raw format the name of an object is in a header only. Each arrives through each sink (Kafka: in
// TestKafka), as it is once it was decoded, and none becomes a dead letter.
func TestRawHeaders(t *testing.T) {
	t.Run("webhook", func(t *testing.T) {
		receiver := webhooktest.Start(t)
		config := webhook.NewConfig()
		config.URL = receiver.URL()
		sendOddNames(t, config)
		var got []string
		for _, request := range receiver.Requests() {
			got = append(got, request.Header.Get("kubeferry-subject"))
		}
		checkOddNames(t, got)
	})
	t.Run("nats", func(t *testing.T) {
		srv := natstest.Start(t, nil)
		srv.CreateStream(t.Context(), "RAW", "k8s.>")
		sendOddNames(t, natsConfig(hostOf(t, srv.URL())))
		var got []string
		for _, message := range readStream(t, srv, "RAW") {
			got = append(got, message.Header.Get("kubeferry-subject"))
		}
		checkOddNames(t, got)
	})
}

func testKafkaRawHeaders(t *testing.T, broker *kafkaServer) {
	t.Helper()
	broker.CreateTopic("raw", 1)
	sendOddNames(t, kafkaConfig("raw", broker.Addr()))
	var got []string
	for _, record := range readAll(t, broker, "raw") {
		got = append(got, record.Headers["kubeferry-subject"])
	}
	checkOddNames(t, got)
}

func sendOddNames(t *testing.T, config sinks.Config) {
	t.Helper()
	p := runPipeline(t, config, pipeline.Options{Options: shape.Options{Format: shape.FormatRaw}, DeadLetter: refuseLetters{}})
	n := 0
	for name := range oddNames {
		n++
		quoted, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		object, err := delta.NewObject(fmt.Appendf(nil,
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":%s,"uid":"u-%d","resourceVersion":"%d"}}`, quoted, n, n))
		if err != nil {
			t.Fatal(err)
		}
		err = handOver(t.Context(), p, &delta.Delta{
			Type:     delta.Modified,
			Resource: schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
			Object:   object, Observed: time.Now(),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if left := p.Drain(within(t, 30*time.Second)); left > 0 {
		t.Fatalf("%d records are left", left)
	}
}

func checkOddNames(t *testing.T, headers []string) {
	t.Helper()
	const path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/"
	got := map[string]int{}
	for _, header := range headers {
		got[header]++
	}
	for name, coded := range oddNames {
		if got[path+coded] != 1 {
			t.Errorf("%q: got %d records with the subject %s", name, got[path+coded], path+coded)
		}
		if decoded, err := url.PathUnescape(coded); err != nil || decoded != name {
			t.Errorf("%s decodes to %q, want %q (%v)", coded, decoded, name, err)
		}
	}
	if len(headers) != len(oddNames) {
		t.Errorf("got %d records with subjects %q, want %d", len(headers), headers, len(oddNames))
	}
}
