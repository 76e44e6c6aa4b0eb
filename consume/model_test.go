package consume

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is a cluster, and a kubeferry that sends its changes under the promises of docs/formats.md to a consumer.
type world struct {
	t *rapid.T

	version int
	exists  map[string]state // by subject: the truth
	sent    map[string]state // what kubeferry knows and has sent

	table   *Table
	filter  *Filter
	history []Record // what was sent; it may be repeated
	passed  map[string]int
	applied map[string]int
	last    map[string]string // the place of the last record that the filter passed, by subject

	raised  int // how far kills have raised the sequences
	edited  int // the sequence that the last edit ended with
	certain int // from where on in history a repetition with raised sequences is known to be one
}

type state struct{ uid, version int }

var modelResource = Resource{Version: "v1", Resource: "configmaps"}

func (w *world) subject(label string) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/configmaps/%s",
		rapid.SampledFrom([]string{"m", "n"}).Draw(w.t, "namespace"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(w.t, label))
}

// change changes an object in the cluster: it returns the object, and what it was before.
func (w *world) change() (subject string, before, now state) {
	subject = w.subject("name")
	before = w.exists[subject]
	w.version++
	switch {
	case before.uid == 0:
		w.exists[subject] = state{w.version, w.version}
	case rapid.Bool().Draw(w.t, "delete"):
		delete(w.exists, subject)
	default:
		w.exists[subject] = state{before.uid, w.version}
	}
	return subject, before, w.exists[subject]
}

// live sends a change as it happens.
func (w *world) live() {
	subject, before, now := w.change()
	switch {
	case before.uid == 0:
		w.send(w.record(Added, subject, now, w.version))
	case now.uid == 0:
		w.send(w.record(Deleted, subject, state{before.uid, w.version}, w.version))
	default:
		w.send(w.record(Modified, subject, now, w.version))
	}
}

func (w *world) record(typ Type, subject string, s state, sequence int) Record {
	return Record{
		ID: fmt.Sprintf("c/u%d/%d/%s", s.uid, s.version, typ), Cluster: "c", Subject: subject, Time: time.Unix(int64(w.version), 0),
		Sequence: fmt.Sprintf("%020d", max(sequence, w.edited)+w.raised), Type: typ, Resource: modelResource, Namespace: namespaceOf(subject),
	}
}

// missed makes changes of which no record is sent.
func (w *world) missed() {
	for range rapid.IntRange(0, 6).Draw(w.t, "missed") {
		w.change()
	}
	w.version++ // of something else
}

// gap sends a gap and the difference.
func (w *world) gap() {
	from := w.version
	w.missed()
	w.send(Record{
		ID: fmt.Sprintf("c/w/%d-%d/GAP", from, w.version), Cluster: "c", Subject: "/api/v1/configmaps", Type: Gap, Resource: modelResource,
		From: fmt.Sprint(from), To: fmt.Sprint(w.version),
	})
	for subject, s := range w.sent {
		now := w.exists[subject]
		if now == s {
			continue
		}
		if now.uid == s.uid {
			w.send(w.inferred(Modified, subject, now, now.version))
			continue
		}
		gone := w.version
		if now.uid != 0 {
			gone = now.version - 1
		}
		w.send(w.inferred(Deleted, subject, s, gone))
	}
	for subject, now := range w.exists {
		if _, known := w.sent[subject]; !known {
			w.send(w.inferred(Added, subject, now, now.version))
		}
	}
}

func (w *world) inferred(typ Type, subject string, s state, sequence int) Record {
	r := w.record(typ, subject, s, sequence)
	r.Inferred = true
	return r
}

// snapshot sends what exists between marks. It may be abandoned, and a record of it may die.
func (w *world) snapshot(namespace string, abandoned, dies bool) {
	w.version++
	mark := Record{
		Cluster: "c", Subject: "/api/v1/configmaps", Type: Mark, Resource: modelResource, Namespace: namespace,
		SnapshotID: fmt.Sprint("s", w.version), Phase: Started, ID: fmt.Sprintf("c/w/s%d-started/SNAPSHOT", w.version),
	}
	w.send(mark)
	due := map[string]bool{}
	for subject := range w.exists {
		if namespace == "" || namespaceOf(subject) == namespace {
			due[subject] = true
		}
	}
	for subject := range due {
		if rapid.Bool().Draw(w.t, "live") {
			w.live()
		}
		s, ok := w.exists[subject]
		if !ok || rapid.IntRange(0, 9).Draw(w.t, "dies") == 0 && dies {
			mark.Complete = mark.Complete && !ok
			continue
		}
		r := w.record(Added, subject, s, s.version)
		r.Snapshot = true
		w.send(r)
	}
	mark.ID, mark.Phase, mark.Complete = fmt.Sprintf("c/w/%s-completed/SNAPSHOT", mark.SnapshotID), Completed, !dies
	if !abandoned {
		w.send(mark)
	}
}

// gone deletes the resource, and all objects with it: their DELETED have the sequence of their last change.
func (w *world) gone() {
	w.version++
	for subject, s := range w.exists {
		delete(w.exists, subject)
		w.send(w.inferred(Deleted, subject, s, s.version))
	}
}

// edit takes some objects out of the selection, and selects them again: the second ADDED of a state has the id of the first.
func (w *world) edit() {
	taken := map[string]state{}
	w.version++
	for subject, s := range w.exists {
		if rapid.Bool().Draw(w.t, "taken") {
			taken[subject] = s
			w.send(w.inferred(Deleted, subject, s, w.version))
		}
	}
	w.version++
	w.edited = w.version
	clear(w.applied)
	clear(w.passed)
	for subject, s := range taken {
		w.send(w.record(Added, subject, s, s.version))
	}
	w.certain = len(w.history)
}

// killed sends the last changes again with raised sequences, as after a kill and an edit.
func (w *world) killed() {
	clear(w.applied)
	w.raised += 1 << 20
	for i := rapid.IntRange(min(w.certain, len(w.history)), len(w.history)).Draw(w.t, "again"); i < len(w.history); i++ {
		r := w.history[i]
		if r.IsChange() {
			sequence, _ := strconv.Atoi(r.Sequence)
			r.Sequence = fmt.Sprintf("%020d", sequence+1<<20)
			w.history[i] = r
		}
		w.deliver(r)
	}
	w.certain = len(w.history)
}

// loss lets a kubeferry start without its state: what is gone meanwhile is not reported.
func (w *world) loss() {
	w.missed()
	w.sent = map[string]state{}
	w.history = nil // the process is gone
	for _, namespace := range []string{"m", "n"} {
		w.snapshot(namespace, false, false)
	}
	w.history = nil
	w.certain = 0
}

// repeat sends one record again, or all from one on.
func (w *world) repeat() {
	if len(w.history) == 0 {
		return
	}
	again := w.history[rapid.IntRange(0, len(w.history)-1).Draw(w.t, "from"):]
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
	if r.Inferred && r.Type == Deleted {
		w.certain = len(w.history)
	}
	if s, ok := w.exists[r.Subject]; r.Type == Deleted {
		delete(w.sent, r.Subject)
	} else if r.IsChange() && ok {
		w.sent[r.Subject] = s
	}
	w.deliver(r)
}

func (w *world) deliver(r Record) {
	if verdict, _ := w.table.Apply(&r); verdict == New {
		w.applied[r.ID]++
		if w.applied[r.ID] > 1 {
			w.t.Fatalf("applied twice: %s", r.ID)
		}
	}
	if w.filter.Check(&r) != New {
		return
	}
	w.passed[r.ID]++
	if w.passed[r.ID] > 1 {
		w.t.Fatalf("passed twice: %s", r.ID)
	}
	if r.IsChange() {
		if place := r.Place(); place <= w.last[r.Subject] {
			w.t.Fatalf("passed %s behind %s", place, w.last[r.Subject])
		}
		w.last[r.Subject] = r.Place()
	}
}

// TestTable runs changes, repetitions, gaps, snapshots and losses of kubeferry's state: the table is what exists, and the filter
// passes nothing twice and nothing out of order.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, exists: map[string]state{}, sent: map[string]state{}, table: NewTable(1000), filter: NewFilter(1000),
			passed: map[string]int{}, applied: map[string]int{}, last: map[string]string{},
		}
		namespaces := rapid.SampledFrom([]string{"", "m", "n"})
		actions := map[string]func(*rapid.T){
			"live":      func(*rapid.T) { w.live() },
			"more":      func(*rapid.T) { w.live() },
			"gap":       func(*rapid.T) { w.gap() },
			"snapshot":  func(t *rapid.T) { w.snapshot(namespaces.Draw(t, "of"), false, false) },
			"abandoned": func(t *rapid.T) { w.snapshot(namespaces.Draw(t, "of"), true, false) },
			"broken":    func(t *rapid.T) { w.snapshot(namespaces.Draw(t, "of"), false, true) },
			"gone":      func(*rapid.T) { w.gone() },
			"loss":      func(*rapid.T) { w.loss() },
			"edit":      func(*rapid.T) { w.edit() },
			"killed":    func(*rapid.T) { w.killed() },
			"repeat":    func(*rapid.T) { w.repeat() },
			"": func(t *rapid.T) {
				for subject, want := range w.exists {
					got, ok := w.table.Get(Key{"c", subject})
					if !ok || got.UID() != fmt.Sprint("u", want.uid) || got.ResourceVersion() != fmt.Sprint(want.version) {
						t.Fatalf("%s: got %q %v, want %+v", subject, got.ID, ok, want)
					}
				}
				if w.table.Len() != len(w.exists) {
					t.Fatalf("%d in the table, %d exist", w.table.Len(), len(w.exists))
				}
			},
		}
		t.Repeat(actions)
	})
}

// TestOtherSnapshot ends a snapshot whose begin was not read, or comes late from the dead letters, in the midst of another one: nothing
// is removed.
func TestOtherSnapshot(t *testing.T) {
	table := NewTable(10)
	object := Record{ID: "c/u/1/ADDED", Cluster: "c", Subject: "s", Sequence: "1", Type: Added}
	started := Record{ID: "c/w/a-started/SNAPSHOT", Cluster: "c", Type: Mark, Phase: Started, SnapshotID: "a"}
	completed := Record{ID: "c/w/b-completed/SNAPSHOT", Cluster: "c", Type: Mark, Phase: Completed, SnapshotID: "b", Complete: true}
	late := started
	late.ID, late.SnapshotID, late.Replayed = "c/w/b-started/SNAPSHOT", "b", true
	for _, r := range []Record{object, started, late, completed} {
		if _, gone := table.Apply(&r); len(gone) > 0 || table.Len() != 1 {
			t.Errorf("%s: %d gone, %d left", r.ID, len(gone), table.Len())
		}
	}
	completed.ID, completed.SnapshotID = "c/w/a-completed/SNAPSHOT", "a"
	if _, gone := table.Apply(&completed); len(gone) != 1 || gone[0].ID != object.ID || table.Len() != 0 {
		t.Errorf("its own: %d gone, %d left", len(gone), table.Len())
	}
}

// TestMemory shows the bounds: what is forgotten passes again, and nothing else.
func TestMemory(t *testing.T) {
	filter, table := NewFilter(2), NewTable(2)
	at := func(name string, sequence int) *Record {
		return &Record{ID: fmt.Sprintf("c/%s/%d/DELETED", name, sequence), Cluster: "c", Subject: name, Sequence: fmt.Sprintf("%020d", sequence), Type: Deleted}
	}
	for i := range 1000 {
		for range 2 { // the second time it is a repetition
			filter.Check(at(fmt.Sprint(i), i))
			table.Apply(at(fmt.Sprint(i), i))
		}
	}
	if n, m := len(filter.latest.entries), len(table.gone.entries); n != 2 || m != 2 {
		t.Errorf("%d and %d remembered, want 2", n, m)
	}
	if v := filter.Check(at("999", 998)); v != Late {
		t.Errorf("an older one: %v", v)
	}
	if v := filter.Check(at("0", 0)); v != New {
		t.Errorf("a forgotten one: %v", v)
	}
}

// TestWithoutSequence applies changes whose resource versions are not numbers: in the order of their arrival, and not again.
func TestWithoutSequence(t *testing.T) {
	table := NewTable(10)
	r := func(version string, typ Type) *Record {
		return &Record{ID: "c/u/" + version + "/" + string(typ), Cluster: "c", Subject: "s", Type: typ}
	}
	shown := func(version string) *Record {
		shown := r(version, Added)
		shown.Snapshot = true
		return shown
	}
	mark := func(phase, name string) *Record {
		return &Record{ID: "c/w/" + name + "-" + phase + "/SNAPSHOT", Cluster: "c", Type: Mark, Phase: phase, SnapshotID: name, Complete: true}
	}
	for _, step := range []struct {
		record *Record
		want   Verdict
		count  int
	}{
		{r("x", Added), New, 1},
		{r("y", Modified), New, 1},
		{r("x", Added), Repeated, 1},
		{r("z", Deleted), New, 0},
		{r("y", Modified), Repeated, 0},
		{mark(Started, "a"), New, 0},
		{shown("y"), New, 1}, // it is selected again
		{mark(Completed, "a"), New, 1},
		{shown("y"), Repeated, 1},
		{mark(Started, "b"), New, 1},
		{mark(Completed, "b"), New, 0}, // it is filtered out
		{mark(Started, "c"), New, 0},
		{shown("y"), New, 1},
		{mark(Completed, "c"), New, 1},
	} {
		if got, _ := table.Apply(step.record); got != step.want || table.Len() != step.count {
			t.Errorf("%s: got %v and %d objects, want %v and %d", step.record.ID, got, table.Len(), step.want, step.count)
		}
	}
}

// TestRaisedSequence sends changes again under their ids with higher sequences, as after an edit of the configuration and a kill: the
// filter passes only what is no repetition.
func TestRaisedSequence(t *testing.T) {
	filter := NewFilter(10)
	at := func(epoch, sequence, version int, typ Type) Record {
		return Record{
			ID: fmt.Sprintf("c/u/%d/%s", version, typ), Cluster: "c", Subject: "s", Type: typ, Sequence: fmt.Sprintf("%03d%017d", epoch, sequence),
		}
	}
	inferred := func(r Record) Record { r.Inferred = true; return r }
	for i, step := range []struct {
		record Record
		want   Verdict
	}{
		{at(0, 8, 8, Added), New},
		{at(0, 9, 9, Modified), New},
		{at(0, 108, 8, Added), Late},
		{at(0, 109, 9, Modified), Repeated},
		{at(0, 109, 9, Added), Repeated},        // of a snapshot
		{inferred(at(0, 110, 8, Deleted)), New}, // the last state that was known is older
		{inferred(at(0, 111, 8, Deleted)), Repeated},
		{at(0, 112, 9, Added), New}, // selected again
		{inferred(at(0, 113, 9, Deleted)), New},
		{at(0, 114, 9, Added), New}, // and once more
		{at(0, 115, 12, Deleted), New},
		{inferred(at(0, 116, 9, Deleted)), Late},
		{at(0, 214, 9, Added), Late},
		{at(0, 215, 12, Deleted), Repeated},
		{at(1, 5, 5, Added), New}, // after a restore of etcd
	} {
		if got := filter.Check(&step.record); got != step.want {
			t.Errorf("%d, %s with %s: got %v, want %v", i, step.record.ID, step.record.Sequence, got, step.want)
		}
	}
}
