package tail

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/stdout"
)

func records() []sinks.Record {
	record := func(kind, name, members string) sinks.Record {
		return sinks.Record{
			ID: "c/u/1/" + kind, ContentType: "application/json",
			Fields: sinks.Fields{Type: kind, Resource: "configmaps", Namespace: "shop", Name: name},
			Body:   []byte(`{"time":"2026-11-22T12:00:00.000001Z","type":"` + kind + `",` + members + `}`),
		}
	}
	return []sinks.Record{
		record("ADDED", "web", `"object":{"apiVersion":"v1","data":{"a":"1 < 2","n":"redacted:hmac-sha256:0123456789abcdef"}},"snapshot":true`),
		record("SNAPSHOT", "", `"phase":"completed","count":1`),
		record("MODIFIED", "web", `"object":{"apiVersion":"v1","data":{"a":"2"}},"oldObject":{"apiVersion":"v1","data":{"a":"1"}},"changedBy":[{"manager":"kubectl-edit"},{"manager":"helm"}]`),
		record("MODIFIED", "web", `"object":{"apiVersion":"v1","data":{"a":"2"}},"oldObjectKnown":false`),
		record("GAP", "", `"reason":"410 Gone"`),
		record("DELETED", "web", `"object":{"apiVersion":"v1","data":{"a":"2"}}`),
	}
}

func printed(t *testing.T, output string, shown *config.Sink, batch []sinks.Record) string {
	t.Helper()
	var out, errs strings.Builder
	p := newPrinter(Options{Out: &out, Err: &errs, Output: output}, shown, func(err error) { t.Error(err) })
	if err := errors.Join(p.header(), p.Deliver(t.Context(), batch)); err != nil || errs.Len() > 0 {
		t.Error(err, errs.String())
	}
	return regexp.MustCompile(`(?m)^\d\d:\d\d:00\.000`).ReplaceAllString(out.String(), "12:00:00.000")
}

func TestPrint(t *testing.T) {
	const rows = `TIME          TYPE      OBJECT                        WHAT
12:00:00.000  ADDED     configmaps shop/web           exists: data.a 1 < 2, data.n redacted:01234567
12:00:00.000  MODIFIED  configmaps shop/web           data.a 1 → 2; by helm, kubectl-edit
12:00:00.000  MODIFIED  configmaps shop/web           data.a 2
12:00:00.000  GAP       configmaps                    changes were missed: 410 Gone
12:00:00.000  DELETED   configmaps shop/web           data.a 2
`
	if got := printed(t, "table", nil, records()); got != rows {
		t.Errorf("got\n%s\nwant\n%s", got, rows)
	}
	sink := &config.Sink{Name: "out", Config: stdout.NewConfig()}
	const piped = `TIME          TYPE      OBJECT                        TO                                                        WHAT
12:00:00.000  ADDED     configmaps shop/web           standard output                                           exists: data.a 1 < 2, data.n redacted:01234567
12:00:00.000  SNAPSHOT  configmaps                    standard output                                           was all that exists: 1
`
	if got := printed(t, "table", sink, records()[:2]); got != piped {
		t.Errorf("got\n%s\nwant\n%s", got, piped)
	}
	const line = `{"time":"2026-11-22T12:00:00.000001Z","type":"ADDED","object":{"apiVersion":"v1","data":{"a":"1 < 2","n":"redacted:hmac-sha256:0123456789abcdef"}},"snapshot":true}` + "\n"
	if got := printed(t, "json", nil, records()[:2]); got != line {
		t.Errorf("got\n%s\nwant\n%s", got, line)
	}
	const document = `---
body:
  oldObjectKnown: false
  time: "2026-11-22T12:00:00.000001Z"
  type: MODIFIED
`
	unknown := records()[4]
	unknown.Body = []byte(`{"time":"2026-11-22T12:00:00.000001Z","type":"MODIFIED","oldObjectKnown":false}`)
	if got := printed(t, "yaml", sink, []sinks.Record{unknown}); !strings.HasPrefix(got, document) || !strings.Contains(got, "\ndestination: standard output\n") {
		t.Errorf("got\n%s\nwant\n%s", got, document)
	}
}

// Once nothing can be printed the program ends, and what still comes counts as delivered: it has no reader.
func TestPrintNoMore(t *testing.T) {
	var ended []error
	p := newPrinter(Options{Out: broken{}, Err: &strings.Builder{}, Output: "json"}, nil, func(err error) { ended = append(ended, err) })
	for range 2 {
		if err := p.Deliver(t.Context(), records()); err != nil {
			t.Error(err)
		}
	}
	var failed *writeError
	if len(ended) != 1 || !errors.As(ended[0], &failed) || failed.Error() != "full" {
		t.Errorf("got %v", ended)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("full") }
