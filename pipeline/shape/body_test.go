package shape

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
	"github.com/kubeferry/kubeferry/sinks"
)

// body is FormatCustom with an expression.
func body(t testing.TB, text, contentType string) func(*Options) {
	t.Helper()
	program, err := expr.Compile(text, expr.Body)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return func(o *Options) { o.Format, o.Body = FormatCustom, &Body{program, contentType} }
}

// TestCustomBody: the value of the expression is the body, whatever the object is like; null sends nothing.
func TestCustomBody(t *testing.T) {
	pod := func() *delta.Delta {
		d := change(t, "web", 7)
		d.Sequence = 7
		d.Observed, d.Old = time.Date(2026, 11, 21, 0, 12, 3, 123456789, time.UTC), version(t, 6, `"spec":{"old":1}`)
		return d
	}
	for _, test := range []struct {
		name, text, contentType string
		want, wantType          string // no record without wantType
	}{
		{"map", `{"text": object.metadata.name + " <" + type + ">", "n": [1, true, null]}`, "", `{"n":[1,true,null],"text":"web <MODIFIED>"}`, "application/json"},
		{"list", `[{"index": {}}, object.metadata]`, "", `[{"index":{}},{"name":"web","namespace":"shop","resourceVersion":"7","uid":"uid-web"}]`, "application/json"},
		{"text", `"a\nb \"" + cluster + "\""`, "", "a\nb \"c\"", "text/plain; charset=utf-8"},
		{"empty text", `""`, "", "", "text/plain; charset=utf-8"},
		{"content type", `{}`, "application/stream+json", `{}`, "application/stream+json"},
		{"null", `null`, "", "", ""},
		{"null in a branch", `type == "MODIFIED" ? null : {"a": 1}`, "", "", ""},
		{
			"what only a body sees", `[id, sequence, cluster, string(time), string(int(time)), notice]`, "",
			`["c/uid-web/7/MODIFIED","00000000000000000007","c","2026-11-21T00:12:03.123456Z","1795219923",null]`, "application/json",
		},
		{"previous version", `[oldObject.spec, object.spec]`, "", `[{"old":1},{}]`, "application/json"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := start(t, body(t, test.text, test.contentType))
			passes, filtered := p.take(t, pod(), true)
			if !passes || filtered != (test.wantType == "") {
				t.Fatalf("passes %v, filtered %v", passes, filtered)
			}
			explained := p.Explain(t.Context(), pod(), true, nil)
			if explained.NoBody != filtered || explained.Taken == filtered {
				t.Errorf("explained as %+v", explained)
			}
			if filtered {
				return
			}
			for _, r := range []sinks.Record{p.sent[0], explained.Record} {
				if string(r.Content()) != test.want || r.ContentType != test.wantType || r.ID != "c/uid-web/7/MODIFIED" || r.Headers != nil || !r.Custom {
					t.Errorf("got %s, %+v", r.Content(), r)
				}
			}
		})
	}
}

// TestCustomBodyDecides: where another format is shown in its place, null still sends nothing.
func TestCustomBodyDecides(t *testing.T) {
	p := start(t, body(t, `object.metadata.name == "web" ? {"text": type} : null`, ""), func(o *Options) { o.Format = FormatJSON })
	p.take(t, change(t, "web", 7), true)
	if _, filtered := p.take(t, change(t, "other", 8), true); !filtered || len(p.sent) != 1 || p.sent[0].Custom || !strings.HasPrefix(string(p.sent[0].Body), `{"id":`) {
		t.Errorf("filtered %v, sent %+v", filtered, p.sent)
	}
}

// TestCustomBodySeesWhatIsSent: what redaction and transforms take away is in no body.
func TestCustomBodySeesWhatIsSent(t *testing.T) {
	p := start(t, func(o *Options) {
		body(t, `[object, oldObject]`, "")(o)
		o.Redactor = NewRedactor([]byte("key"), "c")
		o.Transforms = []Transform{RedactTransform{o.Redactor, []fieldpath.Path{path(t, "spec.token")}}}
	})
	d := &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 7, `"spec":{"token":"hush"}`), Old: version(t, 6, `"spec":{"token":"hush-hush"}`)}
	p.take(t, d, true)
	if got := string(p.sent[0].Body); strings.Contains(got, "hush") || strings.Count(got, DigestPrefix) != 2 {
		t.Errorf("sent %s", got)
	}
}

// TestCustomBodyFails: an expression that fails, or has no result that can be a body, makes the change a dead letter, with no body.
func TestCustomBodyFails(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": object.spec.missing}`:  "body: ",
		`dyn(object.metadata.size())`: "must be a map, a list, a text or null",
		`dyn(1)`:                      "must be a map, a list, a text or null",
	} {
		p := start(t, body(t, text, ""))
		p.take(t, change(t, "web", 7), true)
		if len(p.dead) != 1 || !strings.Contains(p.errs[0].Error(), want) || strings.Contains(string(p.dead[0].Body), "spec") {
			t.Errorf("%s: sent %v, dead %+v: %v", text, p.sent, p.dead, p.errs)
		}
	}
}

// TestCustomBodyOfNotices: gaps and marks go through the expression too.
func TestCustomBodyOfNotices(t *testing.T) {
	gap := &delta.Entry{Gap: &delta.Gap{Watch: "w", Resource: pods, From: "5", To: "9", Reason: "gone"}}
	mark := &delta.Entry{Mark: &delta.Mark{Watch: "w", Resource: pods, SnapshotSequence: 12, Count: 3}}
	p := start(t, body(t, `type == "GAP" ? notice.from + "-" + notice.to : type == "SNAPSHOT" && object == null ? null : object.metadata.name`, ""))
	if r, _, err := p.encoder.Encode(nil, gap); err != nil || string(r.Content()) != "5-9" {
		t.Errorf("gap: %s %v", r.Content(), err)
	}
	if _, _, err := p.encoder.Encode(nil, mark); !errors.Is(err, ErrNoBody) {
		t.Errorf("mark: %v", err)
	}
	p = start(t, body(t, `{"a": object.metadata.name}`, ""))
	if r, _, err := p.encoder.Encode(nil, gap); err == nil || errors.Is(err, ErrNoBody) || !strings.Contains(string(r.Body), `"from":"5"`) {
		t.Errorf("an expression that fails: %s %v", r.Body, err)
	}
}

// TestCustomBodyWaits: a body that waited stays what it is, whatever the format is by then; a change that waited without one is json.
func TestCustomBodyWaits(t *testing.T) {
	custom, plain := start(t, body(t, `"hello"`, "")), start(t, func(*Options) {})
	made := custom.Shape(t.Context(), change(t, "web", 7), true).Delta
	if r, _, _ := plain.encoder.Encode(nil, &delta.Entry{Delta: made}); string(r.Content()) != "hello" {
		t.Errorf("sent %s", r.Content())
	}
	made = plain.Shape(t.Context(), change(t, "web", 7), true).Delta
	if r, _, _ := custom.encoder.Encode(nil, &delta.Entry{Delta: made}); r.Custom || !strings.HasPrefix(string(r.Content()), `{"id":`) {
		t.Errorf("sent %s", r.Content())
	}
}
