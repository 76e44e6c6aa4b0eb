package asyncapi_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
)

// TestDocument validates the document against AsyncAPI's own schema.
func TestDocument(t *testing.T) {
	document, err := asyncapi.Document()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.Open(filepath.Join("testdata", "asyncapi-3.0.0.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = text.Close() }()
	official, err := jsonschema.UnmarshalJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	const id = "http://asyncapi.com/definitions/3.0.0/asyncapi.json"
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(id, official); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(document); err != nil {
		t.Error(err)
	}
	document["channels"].(map[string]any)["kafka"].(map[string]any)["place"] = "x"
	if schema.Validate(document) == nil {
		t.Error("a mistake is none for the schema")
	}
}

// golden reads the records that package pipeline compares its own with.
func golden(t *testing.T, format string) (records []sinks.Record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "pipeline", "shape", "testdata", "format", format+".golden"))
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(text), "# ") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		if len(lines) < 2 {
			continue
		}
		r := sinks.Record{Body: []byte(lines[len(lines)-1])}
		for _, line := range lines[:len(lines)-1] {
			name, value, _ := strings.Cut(line, ": ")
			kind, name, _ := strings.Cut(name, " ")
			switch kind {
			case "key:", "key":
				r.Key = value
			case "type":
				r.ContentType = value
			case "dedup":
				r.DedupID = value
			case "header":
				if r.Headers == nil {
					r.Headers = map[string]string{}
				}
				r.Headers[name] = value
			case "attribute":
				if r.Attributes == nil {
					r.Attributes = map[string]string{}
				}
				r.Attributes[name] = value
			}
		}
		records = append(records, r)
	}
	if len(records) < 8 {
		t.Fatalf("%s: %d records", format, len(records))
	}
	return records
}

// message is a record as Kafka has it.
func message(r *sinks.Record) asyncapi.Message {
	m := asyncapi.Message{Headers: maps.Clone(r.Headers), Key: []byte("prod-eu-1" + r.Key), Body: r.Body}
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	m.Headers["content-type"], m.Headers["kubeferry-dedup-id"] = r.ContentType, r.DedupID
	for name, value := range r.Attributes {
		m.Headers["ce_"+name] = value
	}
	return m
}

// TestRecordsAreDescribed checks what package pipeline writes, as a message of Kafka and as a line of a file, and replayed. With any mistake it
// is not described.
func TestRecordsAreDescribed(t *testing.T) {
	for format, names := range map[string][]string{
		"cloudevents": {"cloudevents"}, "cloudevents-binary": {"cloudeventsBinary"}, "cloudevents-knative": {"knative", "cloudevents"},
		"cloudevents-binary-knative": {"knativeBinary", "cloudeventsBinary"}, "json": {"json"}, "raw": {"raw", "json"},
	} {
		lines := []string{strings.TrimSuffix(names[0], "Binary"), strings.TrimSuffix(names[len(names)-1], "Binary")}
		for _, r := range golden(t, format) {
			m := message(&r)
			for range 2 {
				got, err := asyncapi.Check("kafka", m)
				if err != nil || !slices.ContainsFunc(got, func(name string) bool { return slices.Contains(names, name) }) {
					t.Errorf("%s: got %v, %v, want %v", format, got, err, names)
				}
				if err := asyncapi.Line(r.Structured(), lines...); err != nil {
					t.Errorf("%s: %v", format, err)
				}
				switch { // as kubeferry replay sends it
				case r.Attributes != nil:
					r.Attributes["replayed"] = "true"
				case r.Headers != nil:
					r.Headers["kubeferry-replayed"] = "true"
				default:
					r.Body = append([]byte(`{"replayed":true,`), r.Body[1:]...)
				}
				m = message(&r)
			}
			for name, broken := range map[string]func(m *asyncapi.Message){
				"content type": func(m *asyncapi.Message) { m.Headers["content-type"] = "text/plain" },
				"header":       func(m *asyncapi.Message) { m.Headers["kubeferry-x"] = "x" },
				"attribute":    func(m *asyncapi.Message) { m.Headers["ce_x"] = "x" },
				"key":          func(m *asyncapi.Message) { m.Key = []byte("A B") },
				"no body":      func(m *asyncapi.Message) { m.Body = nil },
				"half a body":  func(m *asyncapi.Message) { m.Body = m.Body[:len(m.Body)-1] },
				"member": func(m *asyncapi.Message) {
					if strings.HasPrefix(format, "raw") || strings.HasSuffix(format, "binary-knative") {
						m.Headers["ce_x"] = "x" // the body is what the object is
					}
					m.Body = append([]byte(`{"supposed":true,`), m.Body[1:]...)
				},
			} {
				wrong := message(&r)
				broken(&wrong)
				if got, err := asyncapi.Check("kafka", wrong); err == nil {
					t.Errorf("%s: with another %s it is %v", format, name, got)
				}
			}
		}
	}
	deleted := asyncapi.Message{Headers: map[string]string{"kubeferry-dedup-id": "p/c/u/1/DELETED"}, Key: []byte("c/api/v1/namespaces/shop/pods/a")}
	if got, err := asyncapi.Check("kafka", deleted); err != nil || !slices.Equal(got, []string{"tombstone"}) {
		t.Errorf("a tombstone is %v, %v", got, err)
	}
	if got, err := asyncapi.Check("nats", deleted); err == nil {
		t.Errorf("a message without a body is %v on NATS", got)
	}
}
