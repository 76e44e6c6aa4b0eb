package nats

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestDescribe(t *testing.T) {
	record := &sinks.Record{
		DedupID: "p/c/u/1/ADDED", ContentType: "application/json", Attributes: map[string]string{"subject": "/a b"},
		Body: []byte(`{}`), Fields: sinks.Fields{Cluster: "c", Resource: "pods", Name: "a.b"},
	}
	got := NewConfig().Describe(record)
	want := []sinks.Header{
		{Name: "Content-Type", Value: "application/json"},
		{Name: "Nats-Msg-Id", Value: "p/c/u/1/ADDED"},
		{Name: "ce-datacontenttype", Value: "application/json"},
		{Name: "ce-subject", Value: "/a%20b"},
	}
	if got.Err != nil || got.Place != "subject k8s.c.core.pods._.a_b" || string(got.Body) != `{}` || !slices.Equal(got.Headers, want) {
		t.Errorf("got %+v", got)
	}
	record.Fields.Name = strings.Repeat("x", maxSubject)
	if got := NewConfig().Describe(record); got.Err == nil {
		t.Errorf("a subject that is too long: got %+v", got)
	}
}
