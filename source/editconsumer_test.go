package source

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// editConsumer reads the topic of a pipeline, and keeps two maxima, as docs/consumers.md says. It outlives the runs. The goroutine of the test owns it.
type editConsumer struct {
	stored map[string]bool // the ids of what the broker has got
	topic  []editRecord
	read   map[int]bool // the places in the topic that were read

	rows  map[string]editRow // the highest record of each object, by subject
	marks map[string]uint64  // the highest complete mark, by resource and namespace
	died  map[string]editRow // the highest dead letter of each object

	stale map[string]bool // the resources of which rows may stay for ever
	lacks bool            // the filters were edited, and the table needs a snapshot
}

// editRow is a record of an object.
type editRow struct {
	sequence uint64
	deleted  bool
	snapshot uint64
	object   string // uid and version
}

func newEditConsumer() *editConsumer {
	return &editConsumer{
		stored: map[string]bool{}, read: map[int]bool{}, rows: map[string]editRow{}, marks: map[string]uint64{}, died: map[string]editRow{}, stale: map[string]bool{},
	}
}

// above reports whether a row is higher than another one.
func (r editRow) above(other editRow) bool {
	switch {
	case r.sequence != other.sequence:
		return r.sequence > other.sequence
	case r.deleted != other.deleted:
		return r.deleted
	default:
		return r.snapshot > other.snapshot
	}
}

func rowOf(d *delta.Delta) editRow {
	version := strings.TrimPrefix(d.Object.ResourceVersion(), "v")
	return editRow{d.Sequence, d.Type == delta.Deleted, d.SnapshotSequence, string(d.Object.UID()) + "/" + version}
}

// store puts a record into the topic, unless the broker has it.
func (c *editConsumer) store(e editRecord) {
	if id := e.id(); !c.stored[id] {
		c.stored[id] = true
		c.topic = append(c.topic, e)
	}
}

// step reads one record: in any order, and perhaps again.
func (c *editConsumer) step(m *editModel) {
	which, again, forgets := m.draw("message", 50), m.draw("again", 3) == 0, m.draw("forget", 3) == 0
	if forgets { // what lies below its mark may be forgotten at any time
		maps.DeleteFunc(c.rows, func(subject string, r editRow) bool { return c.hidden(subject, r) })
	}
	if len(c.topic) == 0 {
		return
	}
	if n := which % len(c.topic); again || !c.read[n] {
		c.read[n] = true
		c.take(c.topic[n])
	}
}

// readAll reads what was not read yet.
func (c *editConsumer) readAll() {
	for n, e := range c.topic {
		if !c.read[n] {
			c.read[n] = true
			c.take(e)
		}
	}
}

// take runs the statement for a record.
func (c *editConsumer) take(e editRecord) {
	if e.mark != nil {
		if in := e.mark.Resource.Resource + ":" + e.mark.Namespace; !e.mark.Incomplete {
			c.marks[in] = max(c.marks[in], e.mark.SnapshotSequence)
		}
		return
	}
	row, subject := rowOf(e.delta), e.subject()
	if before, known := c.rows[subject]; !known || row.above(before) {
		c.rows[subject] = row
	}
}

func placeOf(subject string) (resource, namespace string) {
	resource, rest, _ := strings.Cut(subject, ":")
	namespace, _, _ = strings.Cut(rest, "/")
	return resource, namespace
}

// hidden reports whether a row is below its mark.
func (c *editConsumer) hidden(subject string, r editRow) bool {
	resource, namespace := placeOf(subject)
	return max(r.sequence, r.snapshot) < max(c.marks[resource+":"], c.marks[resource+":"+namespace])
}

// table is what exists, by subject: uid and version.
func (c *editConsumer) table() map[string]string {
	exists := map[string]string{}
	for subject, r := range c.rows {
		if !r.deleted && !c.hidden(subject, r) {
			exists[subject] = r.object
		}
	}
	return exists
}

// removeStale removes rows that would stay for ever, with the statement of docs/consumers.md: those in namespaces that the pipeline does not
// watch any more. A record that is read again would bring its row back, so the topic forgets them, too.
func (c *editConsumer) removeStale(watches []*watcher) {
	stale := func(subject string) bool {
		resource, namespace := placeOf(subject)
		return c.stale[resource] && !slices.ContainsFunc(watches, func(w *watcher) bool {
			return w.collection.resource.Resource == resource && overlap(w.state.Namespace, namespace)
		})
	}
	maps.DeleteFunc(c.rows, func(subject string, _ editRow) bool { return stale(subject) })
	c.topic = slices.DeleteFunc(c.topic, func(e editRecord) bool { return stale(e.subject()) })
	c.read, c.stale = map[int]bool{}, map[string]bool{} // the places are others
}

// die notes a dead letter.
func (c *editConsumer) die(e editRecord) {
	if row := rowOf(e.delta); !c.died[e.subject()].above(row) {
		c.died[e.subject()] = row
	}
}

// lacksDead reports whether nothing came of an object since a record of it died.
func (c *editConsumer) lacksDead(subject string) bool { return !c.rows[subject].above(c.died[subject]) }

func (c *editConsumer) String() string {
	var text strings.Builder
	for _, e := range c.topic {
		if e.mark != nil {
			fmt.Fprintf(&text, "MARK %s:%s %d %v %v\n", e.mark.Resource.Resource, e.mark.Namespace, e.mark.SnapshotSequence, e.mark.Incomplete, e.mark.Except)
		} else {
			fmt.Fprintf(&text, "%s %s sequence %d snapshot %d\n", e.subject(), shortID(e.delta), e.delta.Sequence, e.delta.SnapshotSequence)
		}
	}
	return text.String()
}
