package admin

import (
	"html"
	"strings"
	"testing"
)

// TestPageEscapes: a value of a tenant or a receiver is text wherever it stands, and never markup.
func TestPageEscapes(t *testing.T) {
	const hostile = `"><script>alert('&')</script><p x="`
	one := func(keys ...string) object {
		o := object{"now": "2026-01-01T00:00:00Z"}
		for _, key := range keys {
			o[key] = hostile
		}
		return o
	}
	pipeline, watch := one("name", "sink", "state", "lastError", "oldest"), one("resource", "namespace", "source", "state", "position", "error")
	pipeline["dead"] = object{hostile: 3.0}
	watch["lastGaps"] = []any{one("time", "from", "to", "reason")}
	status := one("cluster", "version", "started")
	status["problems"], status["replica"], status["deadLetters"] = []any{hostile}, one("role", "holder", "lease", "error"), one("full")
	status["pipelines"], status["watches"] = []any{pipeline}, []any{watch}
	page := string(render(status))
	if n := strings.Count(page, html.EscapeString(hostile)); n < 18 {
		t.Errorf("the page has %d of the values", n)
	}
	for _, raw := range []string{"<script>alert", `<p x="`} {
		if strings.Contains(page, raw) {
			t.Errorf("the page has %s as markup", raw)
		}
	}
}
