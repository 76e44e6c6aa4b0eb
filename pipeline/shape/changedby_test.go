package shape

import (
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// TestChangedByInRecords: who made a change is in its record, without managedFields, also of a redacted or transformed object, and filters
// see it.
func TestChangedByInRecords(t *testing.T) {
	changed := func(kind delta.Type, manager string) *delta.Delta {
		object, err := delta.NewObject([]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"shop","uid":"u","resourceVersion":"7","managedFields":[` +
			`{"manager":"` + manager + `","operation":"Update","time":"2026-11-21T00:12:03Z"}]},"data":{"a":"YQ=="}}`))
		if err != nil {
			t.Fatal(err)
		}
		return &delta.Delta{Type: kind, Resource: secrets, Object: object, Observed: time.Date(2026, 11, 21, 0, 12, 4, 0, time.UTC)}
	}
	const want = `"changedBy":[{"manager":"web,1","operation":"Update","subresource":"","time":"2026-11-21T00:12:03Z"}]`
	for name, adjust := range map[string]func(*Options){
		"plain":       func(*Options) {},
		"redacted":    func(o *Options) { o.Redactor = NewRedactor([]byte("key"), "c") },
		"transformed": func(o *Options) { o.Transforms = []Transform{RemoveTransform{path(t, "data")}} },
		"json":        func(o *Options) { o.Format = FormatJSON },
		"binary":      func(o *Options) { o.Format = FormatCloudEventsBinary },
		"patch":       func(o *Options) { o.Diff = DiffJSONPatch },
		"filtered": func(o *Options) {
			o.Filters = []Filter{exprFilter(t, `changedBy.exists(m, m.manager == "web,1" && m.operation == "Update" && m.subresource == "" && m.time < "2026-11-22")`, OnErrorDrop)}
		},
	} {
		p := start(t, adjust)
		p.take(t, changed(delta.Modified, "web,1"), true)
		if len(p.sent) != 1 || !strings.Contains(string(p.sent[0].Body), want) || strings.Contains(string(p.sent[0].Body), "managedFields") {
			t.Errorf("%s: sent %+v", name, p.sent)
		}
		if name == "filtered" {
			if _, filtered := p.take(t, changed(delta.Modified, "other"), true); !filtered {
				t.Error("a change by another manager is sent")
			}
			if e := p.Explain(t.Context(), changed(delta.Modified, "other"), true, nil); !strings.Contains(string(e.Filters[0].Reads[0].Value), `"other"`) {
				t.Errorf("explained as %+v", e.Filters)
			}
			continue
		}
		p.take(t, changed(delta.Deleted, "web,1"), true)
		if strings.Contains(string(p.sent[1].Body), "changedBy") {
			t.Errorf("%s: a DELETED names who changed the object before: %s", name, p.sent[1].Body)
		}
	}
	raw := start(t, func(o *Options) { o.Format = FormatRaw })
	raw.take(t, changed(delta.Modified, "web,1"), true)
	if got := raw.sent[0].Headers["kubeferry-changed-by"]; got != "web%2C1" {
		t.Errorf("got the header %q", got)
	}
}
