package sinks_test

import (
	"encoding/json"
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestAttributeHeaders(t *testing.T) {
	record := sinks.Record{ContentType: "application/json", Attributes: map[string]string{
		"id": "prod/1+2?a=b&c#d'`~", "subject": `a "b" 100%`, "note": "Euro € 😀\x7f\n",
	}}
	got := map[string]string{}
	record.AttributeHeaders(func(name, value string) { got[name] = value })
	want := map[string]string{ // the last is the example of the HTTP binding, §3.1.3.2
		"ce-id": "prod/1+2?a=b&c#d'`~", "ce-subject": "a%20%22b%22%20100%25", "ce-note": "Euro%20%E2%82%AC%20%F0%9F%98%80%7F%0A",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzAttributeHeaders(f *testing.F) {
	f.Add("Euro € 😀")
	f.Add("\x00\xff %")
	f.Fuzz(func(t *testing.T, value string) {
		record := sinks.Record{Attributes: map[string]string{"a": value}}
		record.AttributeHeaders(func(_, got string) {
			if i := strings.IndexFunc(got, func(r rune) bool { return r < '!' || r > '~' || r == '"' }); i >= 0 {
				t.Errorf("%q: got %q, which no header may hold", value, got)
			}
			if back, err := url.PathUnescape(got); err != nil || back != value {
				t.Errorf("%q: got %q, which reads as %q (%v)", value, got, back, err)
			}
		})
	})
}

func TestStructured(t *testing.T) {
	record := sinks.Record{Body: []byte(`{"a":1}`), ContentType: "application/json"}
	if got := string(record.Structured()); got != `{"a":1}` {
		t.Errorf("no event: got %s, want the body", got)
	}
	record.Attributes = map[string]string{"specversion": "1.0", "subject": "\"ä\"\n"}
	var got map[string]any
	if err := json.Unmarshal(record.Structured(), &got); err != nil {
		t.Fatal(err)
	}
	data, _ := got["data"].(map[string]any)
	if got["specversion"] != "1.0" || got["subject"] != "\"ä\"\n" || got["datacontenttype"] != "application/json" || data["a"] != 1.0 || len(got) != 4 {
		t.Errorf("got %v", got)
	}
}
