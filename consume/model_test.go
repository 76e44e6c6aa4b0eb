package consume

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is a cluster, and a kubeferry that sends its changes under the promises of docs/formats.md.
type world struct {
	t *rapid.T

	version int
	exists  map[string]state // by subject: the truth
	known   map[string]state // what kubeferry knows, and has sent
	offset  int              // of the sequences
	running map[string]int   // by namespace: the snapshots that run
	due     map[string][]string
	history []Record // what was sent, since kubeferry began

	table *Table
	late  []Record // what a consumer has not acknowledged

	filter *Filter
	passed map[string]int
	last   map[string]string
}

type state struct{ uid, version int }

var modelResource = Resource{Version: "v1", Resource: "configmaps"}

func (w *world) subject(label string) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/configmaps/%s",
		rapid.SampledFrom([]string{"m", "n"}).Draw(w.t, "namespace"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(w.t, label))
}

// change changes an object in the cluster.
func (w *world) change() (subject string) {
	subject = w.subject("name")
	before := w.exists[subject]
	w.version++
	switch {
	case before.uid == 0:
		w.exists[subject] = state{w.version, w.version}
	case rapid.Bool().Draw(w.t, "delete"):
		delete(w.exists, subject)
	default:
		w.exists[subject] = state{before.uid, w.version}
	}
	return subject
}

// live sends a change as it happens.
func (w *world) live() {
	subject := w.change()
	w.differ(subject, w.version, false)
}

// differ sends the difference between an object and what is known of it.
func (w *world) differ(subject string, version int, inferred bool) {
	before, now := w.known[subject], w.exists[subject]
	send := func(typ Type, s state, sequence int) {
		r := w.record(typ, subject, s, sequence)
		r.Inferred = inferred
		w.send(r)
	}
	if before.uid != 0 && before.uid != now.uid {
		gone := version
		if now.uid != 0 {
			gone = now.version - 1
		}
		if !inferred {
			before.version = version // the last state of what a watch reports
		}
		send(Deleted, before, gone)
	}
	switch {
	case now.uid == 0 || now == before:
	case now.uid == before.uid:
		send(Modified, now, now.version)
	default:
		send(Added, now, now.version)
	}
	if delete(w.known, subject); now.uid != 0 {
		w.known[subject] = now
	}
}

func (w *world) record(typ Type, subject string, s state, sequence int) Record {
	r := Record{
		ID: fmt.Sprintf("c/u%d/%d/%s", s.uid, s.version, typ), Cluster: "c", Pipeline: "p", Subject: subject, Time: time.Unix(int64(w.version), 0),
		Sequence: w.sequence(sequence), Type: typ, Resource: modelResource, Namespace: namespaceOf(subject),
	}
	snapshot := max(w.running[r.Namespace], w.running[""])
	if snapshot > 0 {
		r.SnapshotSequence = fmt.Sprintf("%020d", snapshot)
	}
	return r
}

func (w *world) sequence(version int) string { return fmt.Sprintf("%020d", w.offset+version) }

// gap misses changes, and sends the difference.
func (w *world) gap() {
	from := w.version
	w.missed()
	w.send(Record{
		ID: fmt.Sprintf("c/w/%d-%d/GAP", from, w.version), Cluster: "c", Pipeline: "p", Subject: "/api/v1/configmaps", Type: Gap, Resource: modelResource,
		From: w.sequence(from), To: w.sequence(w.version), Reason: "refused",
	})
	for _, subject := range w.subjects() {
		w.differ(subject, w.version, true)
	}
}

func (w *world) missed() {
	for range rapid.IntRange(0, 6).Draw(w.t, "missed") {
		w.change()
	}
	w.version++ // of something else
}

func (w *world) subjects() (all []string) {
	for subject := range w.known {
		all = append(all, subject)
	}
	for subject := range w.exists {
		if _, known := w.known[subject]; !known {
			all = append(all, subject)
		}
	}
	slices.Sort(all)
	return all
}

// begin begins a snapshot of a namespace, or of all.
func (w *world) begin(namespace string) {
	if w.running[namespace] > 0 {
		return
	}
	w.version++
	w.running[namespace] = w.offset + w.version
	w.due[namespace] = nil
	for _, subject := range w.subjects() {
		if namespace == "" || namespaceOf(subject) == namespace {
			w.due[namespace] = append(w.due[namespace], subject)
		}
	}
}

// step sends an object of a snapshot, or its mark. An incomplete one lacks objects.
func (w *world) step(namespace string, lacks bool) {
	if w.running[namespace] == 0 {
		return
	}
	if due := w.due[namespace]; len(due) > 0 {
		w.due[namespace] = due[1:]
		if s, exists := w.exists[due[0]]; exists && !lacks {
			r := w.record(Added, due[0], s, s.version)
			r.Snapshot = true
			w.send(r)
		} else if exists {
			w.due[namespace] = append(w.due[namespace], due[0])
		}
		if !lacks {
			return
		}
	}
	sequence := fmt.Sprintf("%020d", w.running[namespace])
	w.send(Record{
		ID: "c/w" + namespace + "/" + sequence + "/SNAPSHOT", Cluster: "c", Pipeline: "p", Subject: "/api/v1/configmaps", Type: Mark, Resource: modelResource,
		Namespace: namespace, SnapshotSequence: sequence, Complete: len(w.due[namespace]) == 0,
	})
	delete(w.running, namespace)
}

// loss lets a kubeferry start without its state: what is gone meanwhile is not reported.
func (w *world) loss() {
	w.missed()
	w.offset += w.version + 1
	w.known, w.running, w.history = map[string]state{}, map[string]int{}, nil
	clear(w.passed)
	w.begin("")
	for _, subject := range w.subjects() {
		w.known[subject] = w.exists[subject]
	}
	for w.running[""] > 0 {
		w.step("", false)
	}
}

// repeat sends one record again, or all from one on.
func (w *world) repeat() {
	if len(w.history) == 0 {
		return
	}
	again := slices.Clone(w.history[rapid.IntRange(0, len(w.history)-1).Draw(w.t, "from"):])
	if rapid.Bool().Draw(w.t, "one") {
		again = again[:1]
	}
	for _, r := range again {
		w.deliver(r)
	}
}

// send sends a record for the first time.
func (w *world) send(r Record) {
	w.history = append(w.history, r)
	w.deliver(r)
	if w.filter.Check(&r) == New && r.IsChange() {
		w.passed[r.ID]++
		if w.passed[r.ID] > 1 && r.Type != Deleted {
			w.t.Fatalf("passed twice: %s", r.ID)
		}
		if r.Sequence < w.last[r.Subject] {
			w.t.Fatalf("passed %s behind %s", r.Sequence, w.last[r.Subject])
		}
		w.last[r.Subject] = r.Sequence
	}
}

// deliver delivers a record, or has it come later.
func (w *world) deliver(r Record) {
	if rapid.IntRange(0, 4).Draw(w.t, "late") == 0 {
		w.late = append(w.late, r)
		return
	}
	w.table.Apply(&r)
}

// redeliver delivers what came late, in any order.
func (w *world) redeliver() {
	for len(w.late) > 0 {
		n := rapid.IntRange(0, len(w.late)-1).Draw(w.t, "redelivered")
		w.table.Apply(&w.late[n])
		w.late = slices.Delete(w.late, n, n+1)
	}
}

// TestTable runs changes, repetitions, gaps, snapshots and losses of kubeferry's state, and delivers the records in any order: once all of them
// have come, the table is what exists.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, exists: map[string]state{}, known: map[string]state{}, running: map[string]int{}, due: map[string][]string{},
			table: NewTable(), filter: NewFilter(1000), passed: map[string]int{}, last: map[string]string{},
		}
		namespaces := rapid.SampledFrom([]string{"", "m", "n"})
		t.Repeat(map[string]func(*rapid.T){
			"live":      func(*rapid.T) { w.live() },
			"more":      func(*rapid.T) { w.live() },
			"gap":       func(*rapid.T) { w.gap() },
			"begin":     func(t *rapid.T) { w.begin(namespaces.Draw(t, "of")) },
			"step":      func(t *rapid.T) { w.step(namespaces.Draw(t, "of"), false) },
			"step more": func(t *rapid.T) { w.step(namespaces.Draw(t, "of"), false) },
			"lacks":     func(t *rapid.T) { w.step(namespaces.Draw(t, "of"), true) },
			"loss":      func(*rapid.T) { w.loss() },
			"repeat":    func(*rapid.T) { w.repeat() },
			"forget":    func(*rapid.T) { w.table.Forget() },
			"check": func(t *rapid.T) {
				w.redeliver()
				for subject, want := range w.exists {
					got, ok := w.table.Get("p", Key{"c", subject})
					if !ok || got.UID() != fmt.Sprint("u", want.uid) || got.ResourceVersion() != fmt.Sprint(want.version) {
						t.Fatalf("%s: got %q %v, want %+v", subject, got.ID, ok, want)
					}
				}
				n := 0
				for range w.table.All() {
					n++
				}
				if n != len(w.exists) {
					t.Fatalf("%d in the table, %d exist", n, len(w.exists))
				}
			},
		})
	})
}

// TestOrderOfRecords: of two records of an object the one with the higher sequence is above, then a DELETED, then one that names a later snapshot.
func TestOrderOfRecords(t *testing.T) {
	ordered := []Record{
		{Sequence: "1", Type: Added},
		{Sequence: "1", Type: Added, SnapshotSequence: "5"},
		{Sequence: "1", Type: Modified, SnapshotSequence: "6"},
		{Sequence: "1", Type: Deleted},
		{Sequence: "1", Type: Deleted, SnapshotSequence: "5"},
		{Sequence: "2", Type: Added},
	}
	for i := range ordered {
		for j := range ordered {
			if got := ordered[i].Above(&ordered[j]); got != (i > j) {
				t.Errorf("%d above %d: got %v", i, j, got)
			}
		}
	}
}

// TestMarks: an incomplete mark and one of another pipeline, cluster, resource or namespace hide nothing.
func TestMarks(t *testing.T) {
	object := Record{ID: "c/u/1/ADDED", Cluster: "c", Pipeline: "p", Subject: "s", Sequence: "1", Type: Added, Resource: modelResource, Namespace: "m"}
	mark := Record{Cluster: "c", Pipeline: "p", Type: Mark, Resource: modelResource, SnapshotSequence: "2", Complete: true}
	for name, test := range map[string]struct {
		change func(*Record)
		hides  bool
	}{
		"of all namespaces":    {func(*Record) {}, true},
		"of the namespace":     {func(m *Record) { m.Namespace = "m" }, true},
		"of another namespace": {func(m *Record) { m.Namespace = "n" }, false},
		"incomplete":           {func(m *Record) { m.Complete = false }, false},
		"of another pipeline":  {func(m *Record) { m.Pipeline = "q" }, false},
		"of another cluster":   {func(m *Record) { m.Cluster = "d" }, false},
		"of another resource":  {func(m *Record) { m.Resource.Resource = "pods" }, false},
		"of its own snapshot":  {func(m *Record) { m.SnapshotSequence = "1" }, false},
	} {
		table, m := NewTable(), mark
		test.change(&m)
		table.Apply(&m) // the order does not matter
		table.Apply(&object)
		if _, exists := table.Get("p", object.Key()); exists == test.hides {
			t.Errorf("%s: exists %v", name, exists)
		}
		if gone := table.Forget(); len(gone) == 1 != test.hides {
			t.Errorf("%s: forgets %v", name, gone)
		}
	}
}

// TestFilterMemory shows the bound: what is forgotten passes again, and nothing else.
func TestFilterMemory(t *testing.T) {
	filter := NewFilter(2)
	at := func(name string, sequence int) *Record {
		return &Record{ID: fmt.Sprintf("c/%s/%d/DELETED", name, sequence), Cluster: "c", Subject: name, Sequence: fmt.Sprintf("%020d", sequence), Type: Deleted}
	}
	for i := range 1000 {
		for range 2 { // the second time it is a repetition
			filter.Check(at(fmt.Sprint(i), i))
		}
	}
	if n := len(filter.entries); n != 2 {
		t.Errorf("%d remembered, want 2", n)
	}
	if v := filter.Check(at("999", 998)); v != Late {
		t.Errorf("an older one: %v", v)
	}
	if v := filter.Check(at("0", 0)); v != New {
		t.Errorf("a forgotten one: %v", v)
	}
}

// TestFilterRaisedOffset: a known state that comes with a higher sequence is a repetition.
func TestFilterRaisedOffset(t *testing.T) {
	filter := NewFilter(10)
	at := func(sequence, version int, typ Type) Record {
		return Record{ID: fmt.Sprintf("c/u/%d/%s", version, typ), Cluster: "c", Subject: "s", Type: typ, Sequence: fmt.Sprintf("%020d", sequence)}
	}
	for i, step := range []struct {
		record Record
		want   Verdict
	}{
		{at(8, 8, Added), New},
		{at(9, 9, Modified), New},
		{at(8, 8, Added), Late},
		{at(109, 9, Added), Repeated}, // of a snapshot
		{at(110, 9, Deleted), New},
		{at(210, 9, Deleted), Repeated},
		{at(212, 12, Added), New}, // selected again
		{at(212, 12, Deleted), New},
		{at(212, 12, Added), Late},
	} {
		if got := filter.Check(&step.record); got != step.want {
			t.Errorf("%d, %s with %s: got %v, want %v", i, step.record.ID, step.record.Sequence, got, step.want)
		}
	}
}
