package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
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
		Snapshot bool           `json:"snapshot"`
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
		return r.Subject
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
		if r.Data.Snapshot {
			return "snapshot: " + describe(r.Data.Object)
		}
		return describe(r.Data.Object)
	case modified:
		if before == nil {
			return describe(r.Data.Object)
		}
		return difference(before, r.Data.Object)
	case deleted:
		n := t.changes[r.Subject] - 1
		delete(t.last, r.Subject)
		delete(t.changes, r.Subject)
		return fmt.Sprintf("after %d records", n)
	default:
		return ""
	}
}

// describe names what makes an object recognizable.
func describe(object map[string]any) string {
	var parts []string
	for path, value := range leaves(object) {
		switch {
		case path == "spec.replicas", strings.HasSuffix(path, ".image"), strings.HasPrefix(path, "data."), path == "spec.size":
			parts = append(parts, fmt.Sprintf("%s %s", short(path), value))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// difference lists the fields that differ, but for those that always do.
func difference(before, after map[string]any) string {
	was, is := maps.Collect(leaves(before)), maps.Collect(leaves(after))
	paths := maps.Clone(was)
	maps.Copy(paths, is)
	var parts []string
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		switch {
		case was[path] == is[path], path == "metadata.resourceVersion", path == "metadata.generation",
			strings.HasPrefix(path, "status."):
		case was[path] == "":
			parts = append(parts, fmt.Sprintf("+ %s %s", short(path), is[path]))
		case is[path] == "":
			parts = append(parts, "- "+short(path))
		default:
			parts = append(parts, fmt.Sprintf("%s %s → %s", short(path), was[path], is[path]))
		}
	}
	return strings.Join(parts, ", ")
}

// short takes the part of a path away that is of no use to a reader.
func short(path string) string {
	if at := strings.LastIndex(path, "]."); at >= 0 {
		return path[at+2:]
	}
	return path
}

// leaves yields the paths of an object's scalars with their values as text.
func leaves(object map[string]any) func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) { walk("", object, yield) }
}

func walk(path string, value any, yield func(string, string) bool) bool {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			if !walk(strings.TrimPrefix(path+"."+key, "."), v, yield) {
				return false
			}
		}
		return true
	case []any:
		for n, v := range value {
			if !walk(path+"["+strconv.Itoa(n)+"]", v, yield) {
				return false
			}
		}
		return true
	default:
		return yield(path, fmt.Sprint(value))
	}
}
