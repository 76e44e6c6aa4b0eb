package consume

import (
	"container/list"
	"strings"
)

// Verdict is what a record is to those that came before it.
type Verdict int

// The verdicts.
const (
	// New is a record to act on.
	New Verdict = iota
	// Repeated is a record that came before, or a state that is known.
	Repeated
	// Late is a change from before the latest one of its object. It is a repetition, unless the record is Replayed: then it was a
	// dead letter, which a log may want, and a table does not. To a [Table] it is also the begin of a snapshot that was a dead letter.
	Late
)

// Filter passes each record once, and the changes of an object in order. It keeps the latest change of a number of objects, and
// drops the least recently used.
//
// A repetition of a dropped change passes again: keep more objects than change in the time in which repetitions come.
// After a crash kubeferry repeats what it delivered since its last commit, a fraction of a second; a Kafka consumer gets again what
// follows its last committed offset.
//
// A Filter is for one goroutine.
type Filter struct {
	latest recent
}

// NewFilter returns a Filter for so many objects, at least 1, about 300 bytes each.
func NewFilter(objects int) *Filter { return &Filter{latest: newRecent(objects)} }

// Check returns the verdict on a record, and keeps a New one.
func (f *Filter) Check(r *Record) Verdict {
	name, place := storeKey(r)
	before, known := f.latest.get(name)
	verdict := compare(before.place, place, known)
	if verdict == New && known {
		verdict = before.raised(r)
	}
	if verdict == New {
		f.latest.put(name, change{place, version(r)})
	}
	return verdict
}

// storeKey returns the key and the place under which a record is kept. Without a place the key is its id.
func storeKey(r *Record) (key, place string) {
	if place := r.Place(); place != "" && r.IsChange() {
		return r.Cluster + " " + r.Subject, place
	}
	return r.ID, ""
}

// change is what is remembered of a change.
type change struct {
	place   string
	version string // as [version] returns it
}

// version is the place of a change whose sequence was not raised: its epoch and resource version.
func version(r *Record) string {
	number := r.ResourceVersion()
	return r.Sequence[:min(len(r.Sequence), 3)] + strings.Repeat("0", max(0, 17-len(number))) + number
}

// raised returns the verdict on a change with a higher place than c. After an edit of the configuration and a kill, what was sent
// shortly before comes again under its id, with a sequence that was raised. The resource version shows that it is known. An
// inferred DELETED has that of the last known state, so it is new unless the object is gone already.
func (c change) raised(r *Record) Verdict {
	wasDeleted, isDeleted := strings.HasSuffix(c.place, "D"), r.Type == Deleted
	order := strings.Compare(version(r), c.version)
	switch {
	case wasDeleted == isDeleted && order == 0:
		return Repeated
	case order < 0 && (wasDeleted || !isDeleted || !r.Inferred):
		return Late
	default:
		return New
	}
}

func compare(before, place string, known bool) Verdict {
	switch {
	case !known || place > before:
		return New
	case place == before:
		return Repeated
	default:
		return Late
	}
}

// recent is a map that forgets what was not used for longest.
type recent struct {
	limit   int
	entries map[string]*list.Element
	order   *list.List // of *remembered, the latest first
}

type remembered struct {
	name string
	change
}

func newRecent(limit int) recent {
	return recent{limit: max(limit, 1), entries: map[string]*list.Element{}, order: list.New()}
}

func (m *recent) get(name string) (c change, ok bool) {
	e, ok := m.entries[name]
	if !ok {
		return change{}, false
	}
	m.order.MoveToFront(e)
	return e.Value.(*remembered).change, true
}

func (m *recent) put(name string, c change) {
	if e, ok := m.entries[name]; ok {
		e.Value.(*remembered).change = c
		m.order.MoveToFront(e)
		return
	}
	m.entries[name] = m.order.PushFront(&remembered{name, c})
	if m.order.Len() > m.limit {
		oldest := m.order.Remove(m.order.Back()).(*remembered)
		delete(m.entries, oldest.name)
	}
}
