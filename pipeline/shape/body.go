package shape

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/sinks"
)

// Body is what [FormatCustom] makes records with.
type Body struct {
	// Program is of the kind [expr.Body].
	Program *expr.Program
	// ContentType of the records; empty for that of JSON, or of plain text where the expression gives text.
	ContentType string
}

// withBody returns a delta that holds the body of its record, nil if the body is null. Its object is then the body's JSON, and keeps its
// identity: so the body waits, and is written to the log, as any other object.
func (c *Change) withBody(ctx context.Context, d *delta.Delta) (*delta.Delta, error) {
	raw, err := c.shaper.options.Body.eval(ctx, c.shaper.encoder.message(&delta.Entry{Delta: d}, &c.meter))
	if err != nil || raw == nil {
		return nil, err
	}
	made := *d
	made.Object, made.Difference, made.Custom = d.Object.WithJSON(raw), nil, true
	return &made, nil
}

// eval returns the JSON of a body, nil if it is null.
func (b *Body) eval(ctx context.Context, in expr.Message) (json.RawMessage, error) {
	value, err := b.Program.Eval(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	switch value.(type) {
	case nil:
		return nil, nil
	case map[string]any, []any, string:
		return delta.EncodeJSON(value)
	default:
		return nil, errors.New("body: the result must be a map, a list, a text or null")
	}
}

// custom sets the body of a record.
func (b *Body) custom(record *sinks.Record, raw json.RawMessage) {
	record.Custom, record.Body = true, raw
	record.ContentType, record.BatchContentType = applicationJSON, applicationJSON
	if record.IsText() {
		record.ContentType = "text/plain; charset=utf-8"
	}
	if b != nil && b.ContentType != "" {
		record.ContentType, record.BatchContentType = b.ContentType, b.ContentType
	}
}

// ErrNoBody is the error of a gap or a mark whose body is null: it is not sent.
var ErrNoBody = errors.New("the body is null")

// notice makes the body of a gap or a mark.
func (e *Encoder) notice(record *sinks.Record, entry *delta.Entry) error {
	raw, err := e.body.eval(context.Background(), e.message(entry, &meter{}))
	switch {
	case err != nil:
		return err
	case raw == nil:
		return ErrNoBody
	}
	e.body.custom(record, raw)
	return nil
}

// message is what the expression of a body sees of a record. It sees the object, and the previous version, as they would be sent.
type message struct {
	*meter
	entry   *delta.Entry
	encoder *Encoder
	record  sinks.Record
	numbers sequences
}

func (e *Encoder) message(entry *delta.Entry, steps *meter) message {
	record, numbers := e.record(entry)
	return message{steps, entry, e, record, numbers}
}

var (
	_ expr.Message = message{}
	_ expr.Metered = message{}
)

func (m message) Object() (map[string]any, error) {
	if m.entry.Delta == nil {
		return nil, nil
	}
	return decoded(m.entry.Delta.Object)
}

func (m message) OldObject() (map[string]any, error) {
	if d := m.entry.Delta; d != nil && d.Difference != nil && d.Difference.OldObject != nil {
		return decoded(d.Object.WithJSON(d.Difference.OldObject))
	}
	return nil, nil
}

func decoded(object *delta.Object) (map[string]any, error) {
	u, err := object.Unstructured()
	if err != nil {
		return nil, err
	}
	return u.Object, nil
}

func (m message) Type() string { return m.record.Fields.Type }

func (m message) Resource() schema.GroupVersionResource { return m.entry.Ref().Resource }

func (m message) Snapshot() bool { return m.entry.Delta != nil && m.entry.Delta.Snapshot }

func (m message) Inferred() bool { return m.entry.Delta != nil && m.entry.Delta.Inferred }

func (m message) ChangedBy() []map[string]string {
	if m.entry.Delta == nil {
		return nil
	}
	return changedBy(m.entry.Delta)
}

func (m message) ID() string { return m.record.ID }

func (m message) Sequence() string { return m.numbers.own }

func (m message) Cluster() string { return m.encoder.cluster }

func (m message) Time() time.Time { return m.entry.Observed().UTC().Truncate(time.Microsecond) }

func (m message) Notice() map[string]any {
	if m.entry.Delta != nil {
		return nil
	}
	var data map[string]any
	_ = json.Unmarshal(append(m.encoder.appendData([]byte{'{'}, m.entry), '}'), &data) // it was just made
	return data
}
