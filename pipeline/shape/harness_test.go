package shape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// change makes a delta of the pod of that name.
func change(t testing.TB, name string, version int) *delta.Delta {
	t.Helper()
	object, err := delta.NewObject(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"shop","uid":"uid-%s","resourceVersion":"%d"},"spec":{}}`, name, name, version))
	if err != nil {
		t.Fatal(err)
	}
	return &delta.Delta{Type: delta.Modified, Resource: pods, Watch: "w", Object: object, Observed: time.Now()}
}

// padded is change in a namespace, with an object of at least so many bytes.
func padded(t testing.TB, namespace, name string, version, size int) *delta.Delta {
	t.Helper()
	d := change(t, name, version)
	raw := bytes.Replace(d.Object.JSON(), []byte(`"shop"`), fmt.Appendf(nil, "%q", namespace), 1)
	raw = fmt.Appendf(raw[:len(raw)-1], `,"pad":%q}`, strings.Repeat("x", size))
	object, err := delta.NewObject(raw)
	if err != nil {
		t.Fatal(err)
	}
	d.Object = object
	return d
}

// shaped is a Shaper, and what it made of the deltas that a test gave it.
type shaped struct {
	*Shaper
	sent []sinks.Record
	dead []sinks.Record
	errs []error // why, of each dead one
}

func start(_ testing.TB, adjust ...func(*Options)) *shaped {
	options := Options{Name: "test", Cluster: "c", Format: FormatCloudEvents}
	for _, adjust := range adjust {
		adjust(&options)
	}
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "test"}) }
	return &shaped{Shaper: New(options, Metrics{counter(), counter(), counter()}, slog.New(slog.DiscardHandler))}
}

// take shapes one delta and returns whether the object passes, and whether the change is filtered out.
func (s *shaped) take(t testing.TB, d *delta.Delta, before bool) (passes, filtered bool) {
	t.Helper()
	made := s.Shape(t.Context(), d, before)
	if made.Delta == nil {
		return made.Passes, true
	}
	record, _, _ := s.encoder.Encode(nil, &delta.Entry{Delta: made.Delta})
	if made.Err != nil {
		s.dead, s.errs = append(s.dead, record), append(s.errs, made.Err)
	} else {
		s.sent = append(s.sent, record)
	}
	return made.Passes, false
}

// fieldFilter passes objects with a top-level field of that value; it cannot decide about those that have it as "broken".
type fieldFilter struct{ field, value string }

func (f fieldFilter) Pass(c *Change) (bool, error) {
	object, err := c.Object()
	if err != nil {
		return false, err
	}
	if object[f.field] == "broken" {
		return false, errors.New("cannot decide")
	}
	return object[f.field] == f.value, nil
}

func (fieldFilter) OfObject() bool { return true }

// upper is a transform that puts a member into capitals and takes another away; it fails where that is "unfit".
type upper struct{ member, gone string }

func (u upper) Apply(_ context.Context, object map[string]any, _ TransformInput) error {
	text, _ := object[u.member].(string)
	if text == "unfit" {
		return fmt.Errorf("%s does not fit", u.member)
	}
	object[u.member] = strings.ToUpper(text)
	delete(object, u.gone)
	return nil
}

func version(t testing.TB, resourceVersion int, fields string) *delta.Object {
	t.Helper()
	object, err := delta.NewObject(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"shop","uid":"u","resourceVersion":"%d"},%s}`, resourceVersion, fields))
	if err != nil {
		t.Fatal(err)
	}
	return object
}
