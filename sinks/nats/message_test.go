package nats

import (
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

var subjectTemplate = sinks.NewTemplate("k8s.{name}")

func TestMessage(t *testing.T) {
	record := sinks.Record{
		DedupID: "p/1", ContentType: "application/json", Body: []byte(`{"a":1}`),
		Headers:    map[string]string{"note": "x", "content-type": "text/plain"},
		Attributes: map[string]string{"id": "1", "note": "100% ä"},
		Fields:     sinks.Fields{Name: "a.b"},
	}
	message, err := message(subjectTemplate, &record)
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

// The batch belongs to the pipeline again once Deliver has returned, also if nats.go has not.
func TestEncodeCopies(t *testing.T) {
	batch := []sinks.Record{
		{Body: []byte("first"), Fields: sinks.Fields{Name: "a"}},
		{Body: []byte("too long"), Fields: sinks.Fields{Name: strings.Repeat("x", maxSubject)}},
		{Body: []byte("last"), Fields: sinks.Fields{Name: "b"}},
	}
	deliveries := encode(subjectTemplate, batch)
	for i := range batch {
		clear(batch[i].Body)
	}
	if first, last := deliveries[0].message, deliveries[2].message; string(first.Data) != "first" || string(last.Data) != "last" {
		t.Errorf("got data %q and %q, want first and last", first.Data, last.Data)
	}
	if class := sinks.Classify(deliveries[1].err); class == nil || !class.Permanent {
		t.Errorf("a subject that is too long: got %v", class)
	}
}
