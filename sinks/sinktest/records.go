package sinktest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubeferry/kubeferry/sinks"
)

// NewRecord returns the n-th record of the object with that name, as a pipeline would make it.
func NewRecord(name string, n int) sinks.Record {
	id := fmt.Sprintf("test/uid-%s/%d/MODIFIED", name, n)
	key := "/api/v1/namespaces/shop/configmaps/" + name
	body, err := json.Marshal(map[string]any{
		"id": id, "n": n, "text": "tab\t \"quotes\" <html> äöü 世界 \u2028 line\nbreak \x00",
	})
	if err != nil {
		panic(err)
	}
	return sinks.Record{
		ID: id, DedupID: "suite/" + id, Key: key,
		ContentType: "application/json", BatchContentType: "application/json",
		Headers: map[string]string{"ce-id": id, "ce-subject": key, "ce-note": "100%25%20blank"},
		Body:    body,
		Fields: sinks.Fields{
			Cluster: "test", Version: "v1", Resource: "configmaps", Kind: "ConfigMap",
			Namespace: "shop", Name: name, UID: "uid-" + name, Type: "MODIFIED",
		},
	}
}

// series returns n records, spread over the objects of the given names in turn.
func series(n int, names ...string) []sinks.Record {
	records := make([]sinks.Record, n)
	for i := range records {
		records[i] = NewRecord(names[i%len(names)], i/len(names)+1)
	}
	return records
}

// large returns a record whose Size is at least size.
func large(name string, size int) sinks.Record {
	r := NewRecord(name, 1)
	body := bytes.TrimSuffix(r.Body, []byte("}"))
	r.Body = append(append(body, `,"fill":"`...), (strings.Repeat("x", size) + `"}`)...)
	return r
}

func clone(records []sinks.Record) []sinks.Record {
	c := slices.Clone(records)
	for i := range c {
		c[i].Body = slices.Clone(c[i].Body)
		c[i].Headers, c[i].Attributes = maps.Clone(c[i].Headers), maps.Clone(c[i].Attributes)
	}
	return c
}

func equal(a, b []sinks.Record) bool {
	return slices.EqualFunc(a, b, func(x, y sinks.Record) bool {
		return x.ID == y.ID && x.DedupID == y.DedupID && x.Key == y.Key && x.ContentType == y.ContentType &&
			x.BatchContentType == y.BatchContentType && x.Fields == y.Fields &&
			bytes.Equal(x.Body, y.Body) && maps.Equal(x.Headers, y.Headers) && maps.Equal(x.Attributes, y.Attributes)
	})
}
