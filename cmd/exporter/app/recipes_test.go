package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/webhook"
)

const recipes = "../../../examples/recipes"

// recipe is what a service documents of its requests and answers.
type recipe struct {
	// header of each request, and schemas of what it has in turn: documents of a line each, or one.
	header  map[string]string
	lines   bool
	schemas []string
	// accepted is the answer of success, and refused one that says no; then the record comes again, or is a dead letter.
	accepted, refused answer
	letter            bool
	// notices is set if gaps are sent too.
	notices bool
}

type answer struct {
	status int
	body   string
}

func documented() map[string]recipe {
	bulk := recipe{
		header: map[string]string{"Content-Type": "application/x-ndjson"},
		lines:  true, notices: true,
		schemas: []string{
			`{"additionalProperties": false, "required": ["index"], "properties": {"index": {"additionalProperties": false, "required": ["_index", "_id"],
				"properties": {"_index": {"pattern": "^kubernetes-[a-z]+$"}, "_id": {"type": "string", "minLength": 1, "maxLength": 512}}}}}`,
			`{"required": ["@timestamp", "cluster", "object", "notice"], "properties": {"@timestamp": {"format": "date-time"}, "object": {"type": ["object", "null"]}}}`,
		},
		accepted: answer{200, `{"took": 3, "errors": false, "items": [{"index": {"_id": "1", "status": 201}}]}`},
		refused:  answer{200, `{"took": 3, "errors": true, "items": [{"index": {"_id": "1", "status": 400, "error": {"type": "document_parsing_exception"}}}]}`},
		letter:   true,
	}
	elastic, opensearch := bulk, bulk
	elastic.header = map[string]string{"Content-Type": "application/x-ndjson", "Authorization": "ApiKey value-of-ELASTICSEARCH_API_KEY"}
	opensearch.header = map[string]string{"Content-Type": "application/x-ndjson", "Authorization": "Basic a3ViZWZlcnJ5OmFzZGY="} // kubeferry:asdf
	return map[string]recipe{
		"slack": {
			schemas:  []string{`{"required": ["text"], "properties": {"text": {"type": "string", "minLength": 1, "not": {"pattern": "[<>]"}}}}`},
			accepted: answer{200, "ok"}, refused: answer{400, "invalid_payload"}, letter: true,
		},
		"teams": {
			schemas: []string{`{"required": ["type", "attachments"], "properties": {"type": {"const": "message"}, "attachments": {"minItems": 1, "items": {
				"required": ["contentType", "content"], "properties": {"contentType": {"const": "application/vnd.microsoft.card.adaptive"}, "content": {
				"required": ["type", "version", "body"], "properties": {"type": {"const": "AdaptiveCard"}, "body": {"minItems": 1, "items": {"required": ["type"]}}}}}}}}}`},
			accepted: answer{202, ""}, refused: answer{429, ""},
		},
		"pagerduty": {
			schemas: []string{`{"additionalProperties": false, "required": ["routing_key", "event_action"], "properties": {
				"routing_key": {"const": "value-of-PAGERDUTY_ROUTING_KEY"}, "event_action": {"const": "trigger"}, "dedup_key": {"type": "string", "maxLength": 255},
				"payload": {"additionalProperties": false, "required": ["summary", "source", "severity"], "properties": {
				"summary": {"type": "string", "maxLength": 1024}, "source": {"type": "string"}, "severity": {"enum": ["critical", "error", "warning", "info"]},
				"timestamp": {"format": "date-time"}, "component": {"type": "string"}, "group": {"type": "string"}, "class": {"type": "string"}, "custom_details": {"type": "object"}}}}}`},
			accepted: answer{202, `{"status": "success", "message": "Event processed", "dedup_key": "k"}`}, refused: answer{400, `{"status": "invalid event", "message": "Event object is invalid", "errors": []}`}, letter: true,
		},
		"alertmanager": {
			schemas: []string{`{"type": "array", "minItems": 1, "items": {"additionalProperties": false, "required": ["labels"], "properties": {
				"labels": {"required": ["alertname"], "additionalProperties": {"type": "string"}}, "annotations": {"additionalProperties": {"type": "string"}},
				"startsAt": {"format": "date-time"}, "endsAt": {"format": "date-time"}, "generatorURL": {"type": "string"}}}}`},
			accepted: answer{200, ""}, refused: answer{503, ""},
		},
		"splunk": {
			header: map[string]string{"Authorization": "Splunk value-of-SPLUNK_TOKEN"},
			lines:  true, notices: true,
			schemas: []string{`{"additionalProperties": false, "required": ["event"], "properties": {"time": {"type": "number"}, "host": {"type": "string"},
				"source": {"type": "string"}, "sourcetype": {"type": "string"}, "index": {"type": "string"}, "event": {}, "fields": {"additionalProperties": {"type": "string"}}}}`},
			accepted: answer{200, `{"text": "Success", "code": 0}`}, refused: answer{503, `{"text": "Server is busy", "code": 9}`},
		},
		"elasticsearch": elastic,
		"opensearch":    opensearch,
		"otlp": {
			header: map[string]string{"Content-Type": "application/json"}, notices: true,
			schemas: []string{`{"additionalProperties": false, "required": ["resourceLogs"], "properties": {"resourceLogs": {"minItems": 1, "items": {
				"required": ["resource", "scopeLogs"], "properties": {"scopeLogs": {"minItems": 1, "items": {"required": ["logRecords"], "properties": {"logRecords": {
				"minItems": 1, "items": {"required": ["observedTimeUnixNano", "severityNumber", "body"]}}}}}}}}}}`},
			accepted: answer{200, `{}`}, refused: answer{503, ""},
		},
		"loki": {
			schemas: []string{`{"additionalProperties": false, "required": ["streams"], "properties": {"streams": {"minItems": 1, "items": {
				"additionalProperties": false, "required": ["stream", "values"], "properties": {"stream": {"minProperties": 1, "additionalProperties": {"type": "string"}},
				"values": {"minItems": 1, "items": {"type": "array", "minItems": 2, "maxItems": 3, "prefixItems": [
				{"type": "string", "pattern": "^[0-9]{19}$"}, {"type": "string"}, {"additionalProperties": {"type": "string"}}]}}}}}}}`},
			accepted: answer{204, ""}, refused: answer{400, "entry too far behind"}, letter: true,
		},
		"datadog": {
			header: map[string]string{"DD-API-KEY": "value-of-DATADOG_API_KEY"}, notices: true,
			schemas: []string{`{"type": "array", "maxItems": 1000, "items": {"required": ["message"], "properties": {"message": {"type": "string", "minLength": 1},
				"ddsource": {"type": "string"}, "ddtags": {"type": "string", "pattern": "^([^:,]+:[^,]+,?)+$"}, "hostname": {"type": "string"}, "service": {"type": "string"},
				"status": {"enum": ["info", "warning"]}}}}`},
			accepted: answer{202, "{}"}, refused: answer{400, `{"errors": [{"status": "400", "title": "Bad Request"}]}`}, letter: true,
		},
	}
}

// samples are changes of which each recipe sends at least one.
func samples(t *testing.T) (list []*delta.Delta) {
	t.Helper()
	for n, object := range []string{
		`{"apiVersion":"v1","kind":"Event","metadata":{"name":"web.1","namespace":"shop","uid":"u1","resourceVersion":"11"},"type":"Warning","reason":"BackOff",
			"message":"Back-off <restarting> & \"failed\"","involvedObject":{"kind":"Pod","name":"web","namespace":"shop","uid":"u0"}}`,
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1","uid":"u2","resourceVersion":"12"},"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","uid":"u3","resourceVersion":"13","labels":{"app":"web","app.kubernetes.io/name":"web"}}}`,
		`{"apiVersion":"v1","kind":"Event","metadata":{"name":"bare","namespace":"shop","uid":"u4","resourceVersion":"14"},"type":"Warning","involvedObject":{}}`,
	} {
		o, err := delta.NewObject([]byte(object))
		if err != nil {
			t.Fatal(err)
		}
		events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
		resource := []schema.GroupVersionResource{events, {Version: "v1", Resource: "nodes"}, {Group: "apps", Version: "v1", Resource: "deployments"}, events}[n]
		list = append(list, &delta.Delta{Type: delta.Added, Resource: resource, Watch: fmt.Sprint(n), Object: o, Observed: time.Now()})
	}
	return list
}

// TestRecipes loads each file of examples/recipes, explains what it makes of changes, and runs its pipeline against a receiver that checks what
// the service documents.
func TestRecipes(t *testing.T) {
	services := documented()
	files, err := filepath.Glob(recipes + "/*.yaml")
	if err != nil || len(files) != len(services) {
		t.Fatalf("%d files, %d services, %v", len(files), len(services), err)
	}
	page, err := os.ReadFile("../../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if link := "(../examples/recipes/" + filepath.Base(file) + ")"; !bytes.Contains(page, []byte(link)) {
			t.Errorf("docs/recipes.md has no link to %s", file)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) { services[name].run(t, file) })
	}
}

func (r recipe) run(t *testing.T, file string) {
	var mu sync.Mutex
	first, requests, gaps := true, 0, 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err == nil {
			err = r.check(req.Header, body)
		}
		if err != nil {
			t.Errorf("%v in\n%s", err, body)
		}
		mu.Lock()
		defer mu.Unlock()
		requests++
		gaps += bytes.Count(body, []byte(`"Expired"`))
		reply := r.accepted
		if first {
			reply, first = r.refused, false
		}
		w.WriteHeader(reply.status)
		_, _ = io.WriteString(w, reply.body)
	}))
	defer server.Close()

	loaded := loadRecipe(t, file, server)
	opened, err := OpenSinks(t.Context(), loaded.Sinks, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer CloseSinks(t.Context(), opened, slog.New(slog.DiscardHandler))
	made, err := newPipelines(loaded, opened, []byte("0123456789abcdef"), nil, &state{}, pipeline.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := made[0]
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	defer running.Wait()
	defer stop()

	sent := slices.DeleteFunc(samples(t), func(d *delta.Delta) bool { return !slices.Contains(loaded.Sources[0].Resources, d.Resource) })
	take := func(ticket pipeline.Ticket, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		p.Take(ticket)
	}
	drain := func() pipeline.Stats {
		t.Helper()
		waiting, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if left := p.Drain(waiting); left > 0 {
			t.Fatalf("%d are left: %+v", left, p.Stats())
		}
		return p.Stats()
	}
	for n, d := range sent {
		explained := p.Shaper().Explain(ctx, d, false, nil)
		if !explained.Taken || explained.DeadLetter != nil {
			t.Errorf("explained as %+v", explained)
		}
		described := loaded.Sinks[0].Config.(sinks.Describer).Describe(&explained.Record)
		if err := cmp.Or(described.Err, r.checkBody(described.Body)); err != nil {
			t.Errorf("%v, explained as\n%s", err, described.Body)
		}
		take(p.Reserve(ctx, d, false))
		if n == 0 { // by itself, since it is refused
			drain()
		}
	}
	take(p.ReserveGap(ctx, &delta.Gap{Watch: "0", Resource: sent[0].Resource, From: "3", To: "9", Reason: "Expired", Observed: time.Now()}))
	s := drain()
	died := 0
	for _, n := range s.Dead {
		died += int(n)
	}
	if int(s.Delivered)+died != len(sent) || (died == 1) != r.letter {
		t.Errorf("got %+v", s)
	}
	mu.Lock()
	defer mu.Unlock()
	if (gaps > 0) != r.notices || requests < 2 && !r.letter {
		t.Errorf("%d gaps in %d requests", gaps, requests)
	}
}

func loadRecipe(t *testing.T, file string, server *httptest.Server) *config.Config {
	t.Helper()
	dir := t.TempDir()
	password, ca := filepath.Join(dir, "password"), filepath.Join(dir, "ca.pem")
	for path, content := range map[string]string{
		password: "asdf",
		ca:       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	loaded, warnings, err := config.Load(file, config.Options{Kinds: []sinks.Kind{webhook.Kind()}, Getenv: func(name string) (string, bool) {
		switch {
		case strings.HasSuffix(name, "_URL"):
			return server.URL, true
		case strings.HasSuffix(name, "_FILE"):
			return password, true
		}
		return "value-of-" + name, true
	}})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	loaded.Sinks[0].Config.(*webhook.Config).TLS = &sinks.TLS{CAFile: ca}
	return loaded
}

// check checks a request.
func (r recipe) check(header http.Header, body []byte) error {
	for name, want := range r.header {
		if got := header.Get(name); got != want {
			return fmt.Errorf("header %s: got %q, want %q", name, got, want)
		}
	}
	return r.checkBody(body)
}

func (r recipe) checkBody(body []byte) error {
	documents := [][]byte{body}
	if r.lines {
		documents = slices.Collect(bytes.Lines(body))
	}
	if len(documents)%len(r.schemas) != 0 {
		return fmt.Errorf("%d lines", len(documents))
	}
	for n, document := range documents {
		var value any
		if err := json.Unmarshal(document, &value); err != nil {
			return err
		}
		if err := compiled(r.schemas[n%len(r.schemas)]).Validate(value); err != nil {
			return err
		}
	}
	return nil
}

func compiled(text string) *jsonschema.Schema {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		panic(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("schema.json", document); err != nil {
		panic(err)
	}
	return compiler.MustCompile("schema.json")
}
