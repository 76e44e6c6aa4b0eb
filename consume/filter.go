package consume

import "container/list"

// Verdict says how a record relates to the records that came before it.
type Verdict int

// The verdicts.
const (
	// New: act on the record.
	New Verdict = iota
	// Repeated: the record came before, or it has a state of the object that came before.
	Repeated
	// Late: the record is older than the latest one of its object. It is a repetition, unless [Record.Replayed] is set. Then it was a
	// dead letter, and a log that wants every change must store it.
	Late
)

// Filter passes each change once, and the changes of an object in order. It remembers the latest change of a number of objects. When there
// are more objects, it forgets the one whose records it has not seen for the longest time.
//
// A repetition of a forgotten change passes again. So choose a number that is larger than the number of objects that change in the time in
// which repetitions come. After a crash kubeferry repeats what it delivered since its last commit, which is mostly less than a second. A
// Kafka consumer gets again what follows its last committed offset.
//
// Only one goroutine may use a Filter at a time.
type Filter struct {
	limit   int
	entries map[filterKey]*list.Element
	order   *list.List // of *remembered, the latest first
}

// filterKey names an object as a pipeline sends it, or anything else by its id.
type filterKey struct{ pipeline, cluster, subject, id string }

// remembered is the latest change of an object.
type remembered struct {
	key                    filterKey
	sequence, uid, version string
	deleted                bool
}

// NewFilter returns a Filter that remembers a number of objects, and at least one. Each takes about 300 bytes.
func NewFilter(objects int) *Filter {
	return &Filter{limit: max(objects, 1), entries: map[filterKey]*list.Element{}, order: list.New()}
}

// Check returns the verdict on a record. It remembers the record if the verdict is New.
func (f *Filter) Check(r *Record) Verdict {
	key := filterKey{pipeline: r.Pipeline, cluster: r.Cluster, id: r.ID}
	if r.IsChange() && r.Sequence != "" {
		key = filterKey{pipeline: r.Pipeline, cluster: r.Cluster, subject: r.Subject}
	}
	now := remembered{key, r.Sequence, r.UID(), r.ResourceVersion(), r.Type == Deleted}
	e, known := f.entries[key]
	if !known {
		f.add(now)
		return New
	}
	f.order.MoveToFront(e)
	before, _ := e.Value.(*remembered)
	verdict := before.verdict(&now)
	if now.sequence > before.sequence || verdict == New {
		*before = now
	}
	return verdict
}

// verdict returns what another record of the same object is behind the latest one. After kubeferry has raised its offset, a known state comes
// once more with a higher sequence.
func (before *remembered) verdict(now *remembered) Verdict {
	switch {
	case now.sequence < before.sequence:
		return Late
	case now.deleted == before.deleted && now.uid == before.uid && (now.deleted || now.version == before.version):
		return Repeated
	case now.sequence > before.sequence || now.deleted && !before.deleted:
		return New
	case before.deleted && !now.deleted:
		return Late
	default:
		return Repeated
	}
}

func (f *Filter) add(now remembered) {
	f.entries[now.key] = f.order.PushFront(&now)
	if f.order.Len() > f.limit {
		oldest, _ := f.order.Remove(f.order.Back()).(*remembered)
		delete(f.entries, oldest.key)
	}
}
