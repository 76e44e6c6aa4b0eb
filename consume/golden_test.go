package consume

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// message is a record as package pipeline encodes it.
type message struct {
	name    string
	headers map[string]string
	body    []byte
}

// golden reads the records that package pipeline compares its own with.
func golden(tb testing.TB, format string) []message {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("..", "pipeline", "shape", "testdata", "format", format+".golden"))
	if err != nil {
		tb.Fatal(err)
	}
	var messages []message
	for block := range strings.SplitSeq(string(text), "# ") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		if len(lines) < 2 {
			continue
		}
		m := message{name: lines[0], headers: map[string]string{}, body: []byte(lines[len(lines)-1])}
		for _, line := range lines {
			if attribute, ok := strings.CutPrefix(line, "attribute "); ok {
				name, value, _ := strings.Cut(attribute, ": ")
				m.headers["ce_"+name] = value
			}
		}
		messages = append(messages, m)
	}
	return messages
}

func (m message) header(name string) string { return m.headers[name] }

// TestFormatsAgree decodes what package pipeline writes: in each format the records are the same.
func TestFormatsAgree(t *testing.T) {
	structured := golden(t, "cloudevents")
	if len(structured) < 8 {
		t.Fatalf("%d records", len(structured))
	}
	types := map[Type]bool{}
	for _, format := range []string{"cloudevents", "cloudevents-binary", "json"} {
		for i, m := range golden(t, format) {
			got, err := Decode(m.header, m.body)
			if err != nil || len(got) != 1 {
				t.Fatalf("%s, %s: %d records, %v", format, m.name, len(got), err)
			}
			want, err := Decode(nil, structured[i].body)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: got %+v, want %+v", format, m.name, got[0], want[0])
			}
			r := got[0]
			types[r.Type] = true
			if r.Cluster != "prod-eu-1" || r.Resource.Resource == "" || r.Time.IsZero() {
				t.Errorf("%s, %s: got %+v", format, m.name, r)
			}
			inShop := r.Resource.Resource == "deployments"
			if r.IsChange() && (r.UID() == "" || r.ResourceVersion() == "" || r.Object == nil || inShop && (r.Namespace != "shop" || len(r.Sequence) != 20)) {
				t.Errorf("%s, %s: got %+v", format, m.name, r)
			}
			if r.Pipeline != "audit" || r.Type == Mark && (len(r.SnapshotSequence) != 20 || r.Complete && r.Count == 0) {
				t.Errorf("%s, %s: got %+v", format, m.name, r)
			}
		}
	}
	for _, typ := range []Type{Added, Modified, Deleted, Gap, Mark} {
		if !types[typ] {
			t.Errorf("no %s among the records", typ)
		}
	}
}

func TestDecode(t *testing.T) {
	one := `{"id":"c/u/1/ADDED","cluster":"c","subject":"/api/v1/namespaces/n/pods/p","time":"2026-11-21T00:12:03.123456Z","type":"ADDED","future":{"x":1}}`
	got, err := Decode(nil, []byte("["+one+","+one+"]"))
	if err != nil || len(got) != 2 || got[1].Namespace != "n" || got[1].UID() != "u" {
		t.Errorf("a batch: got %+v, %v", got, err)
	}
	if got, err := Decode(nil, nil); err != nil || len(got) != 0 {
		t.Errorf("a tombstone: got %+v, %v", got, err)
	}
	ce := map[string]string{
		"ce-specversion": "1.0", "ce-id": "a%20b/u/1/ADDED", "ce-source": "/clusters/a%20b", "ce-subject": "/api/v1/nodes/x%25y",
		"ce-time": "2026-11-21T00:12:03Z", "ce-replayed": "true",
	}
	got, err = Decode(func(name string) string { return ce[name] }, []byte(`{"type":"ADDED"}`))
	if err != nil || got[0].Cluster != "a b" || got[0].Subject != "/api/v1/nodes/x%y" || !got[0].Replayed || got[0].Namespace != "" {
		t.Errorf("headers: got %+v, %v", got, err)
	}
	later := `{"id":"x","cluster":"c","subject":"/api/v1/pods","time":"2026-11-21T00:12:03Z","type":"LATER","resource":"pods","namespace":["n"]}`
	if got, err := Decode(nil, []byte(later)); err != nil || got[0].Type != "LATER" || got[0].Subject != "/api/v1/pods" {
		t.Errorf("a type of a later version: got %+v, %v", got, err)
	}
	for _, bad := range []string{`{"id":"c/u/1/ADDED","subject":"/api/v1/pods/p","type":"ADDED","namespace":["n"]}`, `{"id":"x","subject":"y","type":1}`, `{`, `[1]`, `"x"`, `{"apiVersion":"v1","kind":"Pod"}`, `{"id":"x","subject":"/api/v1/pods/p","type":"ADDED"}`} {
		if got, err := Decode(nil, []byte(bad)); err == nil {
			t.Errorf("%s: got %+v", bad, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, format := range []string{"cloudevents", "cloudevents-binary", "json", "raw"} {
		for _, m := range golden(f, format) {
			f.Add(m.body, m.headers["ce_id"], m.headers["ce_subject"], m.headers["ce_time"])
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, id, subject, when string) {
		headers := map[string]string{"ce-id": id, "ce-subject": subject, "ce-time": when}
		if id != "" {
			headers["ce-specversion"] = "1.0"
		}
		records, err := Decode(func(name string) string { return headers[name] }, body)
		if err != nil {
			return
		}
		table, filter := NewTable(), NewFilter(4)
		for i := range records {
			r := &records[i]
			table.Apply(r)
			filter.Check(r)
			if table.Apply(r) {
				t.Errorf("applied again: %+v", r)
			}
			if v := filter.Check(r); v != Repeated {
				t.Errorf("again: the filter's verdict %v on %+v", v, r)
			}
		}
	})
}
