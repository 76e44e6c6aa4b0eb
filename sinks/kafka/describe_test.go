package kafka

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestDescribe(t *testing.T) {
	record := &sinks.Record{
		ID: "c/u/1/DELETED", DedupID: "p/c/u/1/DELETED", Key: "/api/v1/pods/a", ContentType: "application/json",
		Attributes: map[string]string{"id": "c/u/1/DELETED", "subject": "/é"}, Body: []byte(`{"a":1}`),
		Fields: sinks.Fields{Cluster: "c", Resource: "pods", UID: "u", Type: "DELETED"},
	}
	config := NewConfig()
	config.Key, config.Tombstones = "uid", true
	got := config.Describe(record)
	want := []sinks.Header{
		{Name: "content-type", Value: "application/json"},
		{Name: "ce_id", Value: "c/u/1/DELETED"},
		{Name: "ce_subject", Value: "/é"},
		{Name: "kubeferry-dedup-id", Value: "p/c/u/1/DELETED"},
	}
	if got.Err != nil || got.Place != "topic k8s.c.core.pods, and a tombstone behind it" || got.Key != "u" || string(got.Body) != `{"a":1}` || !slices.Equal(got.Headers, want) {
		t.Errorf("got %+v", got)
	}
	config.Key, config.Topic = "none", "{name}"
	record.Fields.Name, record.Fields.Type = strings.Repeat("x", 250), "ADDED"
	if got := config.Describe(record); got.Err == nil {
		t.Errorf("a topic with too long a name: got %+v", got)
	}
	record.Fields.Name = "x"
	if got := config.Describe(record); got.Err != nil || got.Key != "" || got.Place != "topic x" {
		t.Errorf("without a key: got %+v", got)
	}
}
