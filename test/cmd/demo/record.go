package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/cmd/exporter/table"
)

// The types of records that the demo expects.
const (
	added    = "ADDED"
	modified = "MODIFIED"
	deleted  = "DELETED"
)

// record is what a consumer sees of a change.
type record struct {
	ID      string    `json:"id"`
	Subject string    `json:"subject"`
	Time    time.Time `json:"time"`
	Data    struct {
		Type     string `json:"type"`
		Resource struct {
			Resource string `json:"resource"`
		} `json:"resource"`
		Object   map[string]any `json:"object"`
		Snapshot any            `json:"snapshot"` // true, or the name of the snapshot that a mark is of
	} `json:"data"`
}

// parse reads a CloudEvent. What is none is shown all the same.
func parse(subject string, body []byte) *record {
	var r record
	if err := json.Unmarshal(body, &r); err != nil {
		r = record{ID: subject, Subject: "not a CloudEvent: " + err.Error()}
	}
	return &r
}

// object is the object's resource, namespace and name.
func (r *record) object() string {
	metadata, _ := r.Data.Object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if name == "" {
		return cmp.Or(r.Data.Resource.Resource, r.Subject)
	}
	if namespace, _ := metadata["namespace"].(string); namespace != "" {
		name = namespace + "/" + name
	}
	return r.Data.Resource.Resource + " " + name
}

// changeID is what identifies a change. That of a deletion does without the resource version.
func changeID(uid, resourceVersion, kind string) string {
	if kind == deleted {
		resourceVersion = "*"
	}
	return uid + "/" + resourceVersion + "/" + kind
}

// change is the changeID of the record, read off its id: <cluster>/<uid>/<resource version>/<type>.
func (r *record) change() string {
	parts := strings.Split(r.ID, "/")
	if len(parts) < 4 {
		return r.ID
	}
	parts = parts[len(parts)-3:]
	return changeID(parts[0], parts[1], parts[2])
}

// tally compares the changes that were made with the records that arrived.
type tally struct {
	made    int
	arrived map[string]int // by type
	pending map[string]bool
	early   map[string]bool // arrived before the API server's answer did
	last    map[string]map[string]any
	changes map[string]int
}

func newTally() *tally {
	return &tally{
		arrived: map[string]int{}, pending: map[string]bool{}, early: map[string]bool{},
		last: map[string]map[string]any{}, changes: map[string]int{},
	}
}

func (t *tally) expect(id string) {
	t.made++
	if t.early[id] {
		delete(t.early, id)
		return
	}
	t.pending[id] = true
}

func (t *tally) complete() bool { return len(t.pending) == 0 }

// check returns an error unless everything arrived, and something of every type.
func (t *tally) check() error {
	if !t.complete() {
		return fmt.Errorf("%d of %d changes have not arrived: %s", len(t.pending), t.made,
			strings.Join(slices.Sorted(maps.Keys(t.pending)), " "))
	}
	for _, kind := range []string{added, modified, deleted} {
		if t.arrived[kind] == 0 {
			return fmt.Errorf("no record of type %s arrived", kind)
		}
	}
	return nil
}

func (t *tally) String() string {
	return fmt.Sprintf("%d changes made, %d not arrived; records: %d ADDED, %d MODIFIED, %d DELETED",
		t.made, len(t.pending), t.arrived[added], t.arrived[modified], t.arrived[deleted])
}

// summarize takes note of a record and returns a line about it.
func (t *tally) summarize(r *record) string {
	id := r.change()
	if t.pending[id] {
		delete(t.pending, id)
	} else {
		t.early[id] = true
	}
	t.arrived[r.Data.Type]++
	before := t.last[r.Subject]
	t.last[r.Subject] = r.Data.Object
	t.changes[r.Subject]++
	switch r.Data.Type {
	case added:
		if r.Data.Snapshot == true {
			return "snapshot: " + table.Describe(r.Data.Object)
		}
		return table.Describe(r.Data.Object)
	case modified:
		if before == nil {
			return table.Describe(r.Data.Object)
		}
		return table.Difference(before, r.Data.Object)
	case deleted:
		n := t.changes[r.Subject] - 1
		delete(t.last, r.Subject)
		delete(t.changes, r.Subject)
		return fmt.Sprintf("after %d records", n)
	default:
		return "was all that exists"
	}
}
