package consume

import "container/list"

// Verdict is what a record is to those that came before it.
type Verdict int

// The verdicts.
const (
	// New is a record to act on.
	New Verdict = iota
	// Repeated is a record that came before, or a state that is known.
	Repeated
	// Late is a change from before the latest one of its object. It is a repetition, unless the record is Replayed: then it was a
	// dead letter, which a log may want, and a table does not.
	Late
)

// Filter passes each record once, and the changes of an object in order. It remembers the latest change of each of a number of
// objects, and forgets first what was not seen for longest.
//
// What it forgets can be repeated: choose a number of objects that is larger than what changes in the time in which repetitions come.
// After a crash kubeferry repeats what it delivered since its last commit, a fraction of a second; a Kafka consumer gets again what
// follows its last committed offset.
//
// A Filter is for one goroutine.
type Filter struct {
	latest recent
}

// NewFilter returns a Filter that remembers a number of objects, about 300 bytes each.
func NewFilter(objects int) *Filter { return &Filter{latest: newRecent(objects)} }

// Check returns the verdict on a record, and remembers it.
func (f *Filter) Check(r *Record) Verdict {
	name, place := memory(r)
	before, known := f.latest.get(name)
	verdict := compare(before, place, known)
	if verdict == New {
		f.latest.put(name, place)
	}
	return verdict
}

// memory returns under which name, and with which place, a record is remembered. What has no place is known by its id.
func memory(r *Record) (name, place string) {
	if place := r.Place(); place != "" && r.IsChange() {
		return r.Cluster + " " + r.Subject, place
	}
	return r.ID, ""
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

type remembered struct{ name, place string }

func newRecent(limit int) recent {
	return recent{limit: max(limit, 1), entries: map[string]*list.Element{}, order: list.New()}
}

func (m *recent) get(name string) (place string, ok bool) {
	e, ok := m.entries[name]
	if !ok {
		return "", false
	}
	m.order.MoveToFront(e)
	return e.Value.(*remembered).place, true
}

func (m *recent) put(name, place string) {
	if e, ok := m.entries[name]; ok {
		e.Value.(*remembered).place = place
		m.order.MoveToFront(e)
		return
	}
	m.entries[name] = m.order.PushFront(&remembered{name, place})
	if m.order.Len() > m.limit {
		oldest := m.order.Remove(m.order.Back()).(*remembered)
		delete(m.entries, oldest.name)
	}
}
