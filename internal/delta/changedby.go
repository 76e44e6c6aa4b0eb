package delta

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/jsonscan"
)

// manager is an entry of metadata.managedFields. Its values are JSON as the API server wrote it.
type manager struct{ name, operation, subresource, time []byte }

// newestManagers reads managedFields, and returns the newest entries as the JSON of [Delta.ChangedBy]. Times are compared as text:
// the API server writes them in UTC, to the second.
//
// scaled is the entry of the scale subresource in the same form, if the newest entries are of the status: see [statusFollows].
func newestManagers(s *jsonscan.Scanner) (changedBy, scaled []byte, err error) {
	if s.Peek() != '[' {
		return nil, nil, s.Skip()
	}
	var first [4]manager // more seldom share a second
	newest, scalers := first[:0], []manager(nil)
	err = s.Array(func() error {
		var m manager
		if s.Peek() != '{' {
			return s.Skip()
		}
		err := s.Object(func(key []byte) (err error) {
			switch string(key) {
			case "manager":
				m.name, err = s.Value()
			case "operation":
				m.operation, err = s.Value()
			case "subresource":
				m.subresource, err = s.Value()
			case "time":
				m.time, err = s.Value()
			default:
				err = s.Skip()
			}
			return err
		})
		if err != nil {
			return err
		}
		switch {
		case !isString(m.time):
			if string(m.subresource) == `"scale"` {
				scalers = append(scalers, m)
			}
		case len(newest) == 0 || bytes.Compare(m.time, newest[0].time) > 0:
			newest = append(newest[:0], m)
		case bytes.Equal(m.time, newest[0].time):
			newest = append(newest, m)
		}
		return nil
	})
	if err != nil || len(newest) == 0 {
		return nil, nil, err
	}
	if scalers != nil && !slices.ContainsFunc(newest, func(m manager) bool { return string(m.subresource) != `"status"` }) {
		scaled = encodeManagers(scalers)
	}
	return encodeManagers(newest), scaled, nil
}

func encodeManagers(managers []manager) []byte {
	size := 0
	for _, m := range managers {
		size += len(`{"manager":,"operation":,"subresource":"","time":},`) + len(m.name) + len(m.operation) + len(m.subresource) + len(m.time)
	}
	out := append(make([]byte, 0, size+2), '[')
	for n, m := range managers {
		if n > 0 {
			out = append(out, ',')
		}
		out = append(append(out, `{"manager":`...), orEmpty(m.name)...)
		out = append(append(out, `,"operation":`...), orEmpty(m.operation)...)
		out = append(append(out, `,"subresource":`...), orEmpty(m.subresource)...)
		if isString(m.time) {
			out = append(append(out, `,"time":`...), m.time...)
		}
		out = append(out, '}')
	}
	return append(out, ']')
}

// statusFollows reports whether the status of an object is still to be written for its spec. If so, and if the newest entries of
// managedFields are of the status, the spec was changed without leaving a time. That is what the scale subresource does: its entries
// have none (ScaleHandler.ToParent of apimachinery takes times from the entries before the change). The request that begins a deletion
// raises the generation as well.
func statusFollows(data []byte) bool {
	var object struct {
		Metadata struct {
			Generation        int64  `json:"generation"`
			DeletionTimestamp string `json:"deletionTimestamp"`
		} `json:"metadata"`
		Status struct {
			ObservedGeneration *int64 `json:"observedGeneration"`
		} `json:"status"`
	}
	return json.Unmarshal(data, &object) == nil && object.Metadata.DeletionTimestamp == "" &&
		object.Status.ObservedGeneration != nil && *object.Status.ObservedGeneration < object.Metadata.Generation
}

func isString(value []byte) bool { return len(value) > 0 && value[0] == '"' }

// orEmpty returns the JSON of a text, or of the empty text.
func orEmpty(value []byte) []byte {
	if isString(value) {
		return value
	}
	return []byte(`""`)
}

// Manager is a field manager: the name of a program that made a change, and how it did.
type Manager struct {
	Manager     string    `json:"manager"`
	Operation   string    `json:"operation"`
	Subresource string    `json:"subresource"`
	Time        time.Time `json:"time"` // zero for the scale subresource
}

// Managers decodes what [Delta.ChangedBy] returns. If a time cannot be read, it is zero.
func Managers(changedBy []byte) []Manager {
	var managers []Manager
	_ = json.Unmarshal(changedBy, &managers) // of strings, and a time: one that is none leaves the rest
	return managers
}

// maxEventAge is how long after a write a watch may report it, because an API server has the history of some minutes only. If the newest
// entry is older than this, the change did not make it, unless the clocks differ by as much.
const maxEventAge = 15 * time.Minute

// ChangedBy returns the field managers that made the change, as a JSON list of [Manager]: those with the newest entries in
// metadata.managedFields, or the one that scaled the object. It returns nil if Kubernetes does not say who made the change. That is so for a
// DELETED, for the request that begins a deletion, and for a change that left no entry.
func (d *Delta) ChangedBy() []byte {
	changedBy := d.Object.fields.changedBy
	if changedBy == nil || d.Type == Deleted {
		return nil
	}
	if d.Type == Modified && !d.Snapshot && !d.Inferred && !d.Observed.IsZero() {
		if at, ok := timeOf(changedBy); ok && d.Observed.Sub(at) > maxEventAge {
			return nil
		}
	}
	return changedBy
}

// timeOf returns the time of the entries, which all have the same, or none.
func timeOf(changedBy []byte) (time.Time, bool) {
	const end = `"}]`
	if len(changedBy) < len(end) {
		return time.Time{}, false
	}
	start := bytes.LastIndexByte(changedBy[:len(changedBy)-len(end)], '"') + 1
	at, err := time.Parse(time.RFC3339, string(changedBy[start:len(changedBy)-len(end)]))
	return at, err == nil
}

// dropBeforeDeletion forgets the managers if the deletion of the object was requested after their last change: that request leaves no
// entry.
func (f *fields) dropBeforeDeletion(deletion, grace []byte) {
	if f.changedBy == nil || !isString(deletion) {
		return
	}
	var ends time.Time
	var seconds int64
	if json.Unmarshal(deletion, &ends) != nil {
		return
	}
	if len(grace) > 0 && json.Unmarshal(grace, &seconds) != nil {
		return
	}
	if at, ok := timeOf(f.changedBy); ok && ends.Add(-time.Duration(seconds)*time.Second).After(at) {
		f.changedBy = nil
	}
}

// StoredChangedBy returns the managers as the state file stores them. [Object.WithChangedBy] takes them back.
func (o *Object) StoredChangedBy() []byte { return o.fields.changedBy }

// WithChangedBy returns the object with the managers that [Object.StoredChangedBy] returned for another version of it, or before it was stored.
// nil leaves the object as it is.
func (o *Object) WithChangedBy(changedBy []byte) *Object {
	if changedBy == nil {
		return o
	}
	same := o.Uncached()
	same.fields.changedBy = changedBy
	return same
}
