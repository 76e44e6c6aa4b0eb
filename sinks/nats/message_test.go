package nats

import (
	"context"
	"errors"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

func newCall(t *testing.T, batch ...sinks.Record) *call {
	t.Helper()
	subject, err := sinks.ParseTemplate("k8s.{name}")
	if err != nil {
		t.Fatal(err)
	}
	return &call{subject: subject, batch: batch, n: len(batch)}
}

func TestMessage(t *testing.T) {
	record := sinks.Record{
		DedupID: "p/1", ContentType: "application/json", Body: []byte(`{"a":1}`),
		Headers:    map[string]string{"note": "x", "content-type": "text/plain"},
		Attributes: map[string]string{"id": "1", "note": "100% ä"},
		Fields:     sinks.Fields{Name: "a.b"},
	}
	message, err := newCall(t, record).message(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if message.Subject != "k8s.a_b" || string(message.Data) != `{"a":1}` {
		t.Errorf("got subject %s, data %s", message.Subject, message.Data)
	}
	want := map[string]string{
		"note": "x", "ce-id": "1", "ce-note": "100%25%20%C3%A4", "ce-datacontenttype": "application/json",
		"Content-Type": "application/json", "Nats-Msg-Id": "p/1",
	}
	if len(message.Header) != len(want) {
		t.Errorf("got headers %v, want %v", message.Header, want)
	}
	for name, value := range want {
		if got := message.Header[name]; len(got) != 1 || got[0] != value {
			t.Errorf("header %s: got %q, want %q", name, got, value)
		}
	}
}

func TestStop(t *testing.T) {
	c := newCall(t, sinks.Record{Body: []byte("{}")})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.stop()
	if _, err := c.message(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
