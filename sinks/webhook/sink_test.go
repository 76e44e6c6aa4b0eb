package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

func open(t *testing.T, change func(*Config)) *Sink {
	t.Helper()
	config := newConfig(change)
	for _, fault := range config.Validate() {
		if !fault.Warning {
			t.Fatalf("%s: %s", fault.Path, fault.Message)
		}
	}
	sink, err := config.Open(t.Context(), sinks.Env{Name: "hook", UserAgent: "kubeferry/test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close(context.Background()) })
	return sink.(*Sink)
}

func records(n int, names ...string) []sinks.Record {
	batch := make([]sinks.Record, n)
	for i := range batch {
		batch[i] = sinktest.NewRecord(names[i%len(names)], i/len(names)+1)
	}
	return batch
}

func TestSingleRequest(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) {
		c.URL = r.url() + "?a=b"
		c.Method = http.MethodPut
		c.Headers = map[string]string{"X-Team": "audit"}
	})
	record := sinktest.NewRecord("a", 1)
	if err := sink.Deliver(t.Context(), []sinks.Record{record}); err != nil {
		t.Fatal(err)
	}
	req := r.requests[0]
	want := map[string]string{
		"Content-Type": "application/json", "User-Agent": "kubeferry/test", "X-Team": "audit",
		"Webhook-Id": record.DedupID, "Ce-Id": record.Headers["ce-id"], "Content-Encoding": "", "Webhook-Signature": "",
	}
	for name, value := range want {
		if got := req.Header.Get(name); got != value {
			t.Errorf("header %s: got %q, want %q", name, got, value)
		}
	}
	if req.Method != http.MethodPut || req.URL.String() != "/hook?a=b" || string(r.bodies[0]) != string(record.Body) {
		t.Errorf("got %s %s %s", req.Method, req.URL, r.bodies[0])
	}
}

// TestBinaryEvent: Content-Type is the datacontenttype, and there is no header of that name (HTTP binding §3.1.1).
func TestBinaryEvent(t *testing.T) {
	r := newReceiver(t, nil)
	record := sinktest.NewRecord("a", 1)
	record.Headers, record.BatchContentType = nil, ""
	record.Attributes = map[string]string{"id": "x/1", "subject": "/a b", "note": "\"100%\" ä~"}
	if err := open(t, func(c *Config) { c.URL = r.url() }).Deliver(t.Context(), []sinks.Record{record}); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name := range r.requests[0].Header {
		if strings.HasPrefix(name, "Ce-") || name == "Content-Type" {
			got[name] = r.requests[0].Header.Get(name)
		}
	}
	want := map[string]string{
		"Ce-Id": "x/1", "Ce-Subject": "/a%20b", "Ce-Note": "%22100%25%22%20%C3%A4~", "Content-Type": "application/json",
	}
	if !maps.Equal(got, want) || string(r.bodies[0]) != string(record.Body) {
		t.Errorf("got %q and body %s, want %q", got, r.bodies[0], want)
	}
}

func TestArray(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords = r.url(), 10 })
	batch := records(3, "a", "b")
	for i := range batch {
		batch[i].BatchContentType = "application/cloudevents-batch+json"
	}
	for range 2 {
		if err := sink.Deliver(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := sink.Deliver(t.Context(), batch[:1]); err != nil {
		t.Fatal(err)
	}
	if got, want := string(r.bodies[0]), fmt.Sprintf("[%s,%s,%s]", batch[0].Body, batch[1].Body, batch[2].Body); got != want {
		t.Errorf("got body %s, want %s", got, want)
	}
	if got, want := string(r.bodies[2]), fmt.Sprintf("[%s]", batch[0].Body); got != want {
		t.Errorf("one record: got body %s, want %s", got, want)
	}
	first, second, one := r.requests[0].Header, r.requests[1].Header, r.requests[2].Header
	if got := first.Get("Content-Type"); got != batch[0].BatchContentType {
		t.Errorf("got content type %q, want %q", got, batch[0].BatchContentType)
	}
	if first.Get("Webhook-Id") != second.Get("Webhook-Id") {
		t.Error("the same batch was sent under two ids")
	}
	if got := one.Get("Webhook-Id"); got != batch[0].DedupID {
		t.Errorf("one record: got id %q, want %q", got, batch[0].DedupID)
	}
	if first.Get("Ce-Id") != "" {
		t.Error("an array carries the headers of one record")
	}
}

func TestHeaderThatCannotBeSent(t *testing.T) {
	r := newReceiver(t, nil)
	record := sinktest.NewRecord("a", 1)
	record.Headers = map[string]string{"ce-subject": "a\nb"}
	class := sinks.Classify(open(t, func(c *Config) { c.URL = r.url() }).Deliver(t.Context(), []sinks.Record{record}))
	if class == nil || !class.Permanent || class.Reason != sinks.ReasonEncode {
		t.Errorf("got %v, want a permanent %s", class, sinks.ReasonEncode)
	}
}
