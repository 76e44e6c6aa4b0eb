package consume_test

import (
	"fmt"
	"net/http"

	"github.com/kubeferry/kubeferry/consume"
)

// record is a record in the format json.
func record(body string) *consume.Record {
	records, err := consume.Decode(nil, []byte(body))
	if err != nil {
		panic(err)
	}
	return &records[0]
}

const (
	added = `{"id":"prod/u1/7/ADDED","cluster":"prod","subject":"/api/v1/namespaces/shop/pods/web","time":"2026-11-21T00:12:03Z",
		"sequence":"00000000000000000007","type":"ADDED","resource":{"group":"","version":"v1","resource":"pods"},"object":{}}`
	deleted = `{"id":"prod/u1/9/DELETED","cluster":"prod","subject":"/api/v1/namespaces/shop/pods/web","time":"2026-11-21T00:12:04Z",
		"sequence":"00000000000000000009","type":"DELETED","resource":{"group":"","version":"v1","resource":"pods"},"object":{}}`
	mark = `{"id":"prod/w/12/SNAPSHOT","cluster":"prod","subject":"/api/v1/pods","time":"2026-11-21T00:12:06Z",
		"type":"SNAPSHOT","resource":{"group":"","version":"v1","resource":"pods"},"phase":"completed",
		"snapshotSequence":"00000000000000000012","count":0,"complete":true}`
)

// A receiver of webhooks passes the headers too: in the format cloudevents-binary they have the attributes.
func ExampleDecode() {
	header := http.Header{}
	header.Set("Content-Type", "application/json")
	records, err := consume.Decode(header.Get, []byte("["+added+","+deleted+"]"))
	for _, r := range records {
		fmt.Println(r.Type, r.Cluster, r.Subject, r.UID(), r.ResourceVersion())
	}
	fmt.Println(err)
	// Output:
	// ADDED prod /api/v1/namespaces/shop/pods/web u1 7
	// DELETED prod /api/v1/namespaces/shop/pods/web u1 9
	// <nil>
}

// A filter for whoever acts on each change once.
func ExampleFilter() {
	filter := consume.NewFilter(100_000)
	for _, r := range []*consume.Record{record(added), record(added), record(deleted), record(added)} {
		switch filter.Check(r) {
		case consume.New:
			fmt.Println("act on", r.ID)
		case consume.Repeated:
			fmt.Println("repeated", r.ID)
		case consume.Late:
			fmt.Println("late", r.ID)
		}
	}
	// Output:
	// act on prod/u1/7/ADDED
	// repeated prod/u1/7/ADDED
	// act on prod/u1/9/DELETED
	// late prod/u1/7/ADDED
}

// A table of what exists. The Pod was deleted while kubeferry had no state, so that no DELETED came: the mark of a snapshot shows it.
func ExampleTable() {
	table := consume.NewTable()
	for _, r := range []*consume.Record{record(added), record(mark)} {
		table.Apply(r)
		_, exists := table.Get(r.Pipeline, record(added).Key())
		fmt.Println(r.Type, exists)
	}
	// Output:
	// ADDED true
	// SNAPSHOT false
}
