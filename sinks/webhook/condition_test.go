package webhook

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	logs "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/kubeferry/kubeferry/sinks"
)

// serve answers each request by answer.
func serve(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return server.URL
}

// TestJudge has services that answer 200 and mean no, and others that refuse what they have already.
func TestJudge(t *testing.T) {
	const elastic, slack = `body.errors == false`, `body.?ok.orValue(false)`
	for _, test := range []struct {
		name               string
		success, permanent string
		status             int
		body               string
		want               string // "", or the reason, with a ! if it is permanent
	}{
		{"taken", elastic, "", 200, `{"errors":false}`, ""},
		{"not taken", elastic, "", 200, `{"errors":true}`, "unavailable"},
		{"no such member", elastic, "", 200, `{}`, "unavailable"},
		{"no JSON", elastic, "", 200, `<html>`, "unavailable"},
		{"text", `body == "ok"`, "", 200, `ok`, ""},
		{"optional", slack, "", 200, `{}`, "unavailable"},
		{"another status", `status == 409 || status == 200`, "", 409, ``, ""},
		{"status that is no success", `status == 200`, "", 202, ``, "unavailable"},
		{"unavailable", `status == 200`, "", 503, ``, "unavailable"},
		{"header", `headers["x-result"] == "stored"`, "", 200, ``, ""},
		{"permanent by body", slack, `body.error in ["invalid_blocks"]`, 200, `{"ok":false,"error":"invalid_blocks"}`, "!rejected"},
		{"not permanent by body", slack, `body.error in ["invalid_blocks"]`, 200, `{"ok":false,"error":"fatal_error"}`, "unavailable"},
		{"permanent that fails", slack, `body.error == "x"`, 200, `{"ok":false}`, "unavailable"},
		{"permanent without success", "", `status == 404 && body.code == 7`, 404, `{"code":7}`, "!rejected"},
		{"status beside the expression", "", `false`, 422, ``, "!rejected"},
		{"delivered although permanent", "", `true`, 200, ``, ""},
		{"too expensive", `[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, a+b+c+d+e+f > 0))))))`, "", 200, ``, "unavailable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Result", "stored")
				w.WriteHeader(test.status)
				fmt.Fprint(w, test.body)
			})
			sink := open(t, func(c *Config) { c.URL, c.Success, c.Permanent = url, test.success, test.permanent })
			got := ""
			if class := sinks.Classify(sinks.PerRecord(sink.Deliver(t.Context(), records(1, "a")), 1)[0]); class != nil {
				got = string(class.Reason)
				if class.Permanent {
					got = "!" + got
				}
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestJudgeHalves: of a batch that is refused for the sake of a record, the others are delivered.
func TestJudgeHalves(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, `{"ok": %t}`, !strings.Contains(string(body), "uid-b/"))
	})
	sink := open(t, func(c *Config) {
		c.URL, c.Batch.MaxRecords, c.Success, c.Permanent = url, 10, "body.ok", "!body.ok"
	})
	for i, err := range sinks.PerRecord(sink.Deliver(t.Context(), records(4, "a", "b", "c", "d")), 4) {
		if class := sinks.Classify(err); (class != nil) != (i == 1) || class != nil && !class.Permanent {
			t.Errorf("record %d: got %v", i, err)
		}
	}
}

// TestFraming shows what a request carries.
func TestFraming(t *testing.T) {
	one := func(body string) sinks.Record {
		return sinks.Record{DedupID: "p/1", Key: "a", ContentType: "application/json", BatchContentType: "application/json", Body: json.RawMessage(body)}
	}
	batch := []sinks.Record{one(`{"a":1}`), one(`[{"index":{}},{"b":"[\n"}]`)}
	text, line := one(`"a\n\"b\""`), one(`{}`)
	text.Custom, text.ContentType, text.BatchContentType = true, "text/plain", "text/plain"
	line.BatchContentType = "application/stream+json"
	const lines = "{\"a\":1}\n{\"index\":{}}\n{\"b\":\"[\\n\"}\n"
	for _, test := range []struct {
		framing     string
		records     []sinks.Record
		max         int
		contentType string
		body        string
	}{
		{"", batch[:1], 1, "application/json", `{"a":1}`},
		{"none", batch[1:], 1, "application/json", `[{"index":{}},{"b":"[\n"}]`},
		{"array", batch[:1], 1, "application/json", `[{"a":1}]`},
		{"", batch, 2, "application/json", `[{"a":1},[{"index":{}},{"b":"[\n"}]]`},
		{"ndjson", batch, 2, "application/x-ndjson", lines},
		{"ndjson", batch[:1], 1, "application/x-ndjson", "{\"a\":1}\n"},
		{"ndjson", []sinks.Record{{DedupID: "p/1", ContentType: "text/plain", Body: []byte("[x")}}, 2, "text/plain", "[x"}, // it cannot be in a batch
		// A custom body that is text is sent as it is, or as a line; in an array it is a string.
		{"none", []sinks.Record{text}, 1, "text/plain", "a\n\"b\""},
		{"ndjson", []sinks.Record{text, text}, 2, "text/plain", "a\n\"b\"\na\n\"b\"\n"},
		{"ndjson", []sinks.Record{line}, 2, "application/stream+json", "{}\n"},
		{"array", []sinks.Record{text}, 2, "text/plain", `["a\n\"b\""]`},
	} {
		t.Run(test.framing+" "+test.body, func(t *testing.T) {
			var contentType, body string
			url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				content, _ := io.ReadAll(r.Body)
				contentType, body = r.Header.Get("Content-Type"), string(content)
			})
			sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords, c.Batch.Framing = url, test.max, test.framing })
			if err := sink.Deliver(t.Context(), test.records); err != nil {
				t.Fatal(err)
			}
			if contentType != test.contentType || body != test.body {
				t.Errorf("got %s %q, want %s %q", contentType, body, test.contentType, test.body)
			}
		})
	}
}

// TestOTLP: the requests of several records become one, in either encoding. Records that the receiver rejects are found and are dead letters; the
// others are sent again for that.
func TestOTLP(t *testing.T) {
	for _, contentType := range []string{"application/json", sinks.ContentTypeProtobuf} {
		t.Run(contentType, func(t *testing.T) {
			var sizes []int
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				var request logs.ExportLogsServiceRequest
				unmarshal := protojson.Unmarshal
				if contentType == sinks.ContentTypeProtobuf {
					unmarshal = proto.Unmarshal
				}
				if err := unmarshal(body, &request); err != nil || r.Header.Get("Content-Type") != contentType {
					t.Errorf("%s: %v: %s", r.Header.Get("Content-Type"), err, body)
				}
				response := &logs.ExportLogsServiceResponse{}
				for _, of := range request.GetResourceLogs() {
					if of.GetSchemaUrl() == "b" {
						response.PartialSuccess = &logs.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "no b"}
					}
				}
				sizes = append(sizes, len(request.GetResourceLogs()))
				answer, err := protojson.Marshal(response)
				if contentType == sinks.ContentTypeProtobuf {
					answer, err = proto.Marshal(response)
				}
				if err != nil {
					t.Error(err)
				}
				w.Header().Set("Content-Type", contentType)
				_, _ = w.Write(answer)
			})
			sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords = url, 10 })
			var batch []sinks.Record
			for _, name := range []string{"a", "b", "c"} {
				body := sinks.OTLPBegin + `{"schemaUrl":"` + name + `"}` + sinks.OTLPEnd
				batch = append(batch, sinks.Record{DedupID: "p/" + name, Key: name, OTLP: true, ContentType: contentType, BatchContentType: contentType, Body: []byte(body)})
			}
			for i, err := range sinks.PerRecord(sink.Deliver(t.Context(), batch), 3) {
				if class := sinks.Classify(err); (class != nil) != (i == 1) || class != nil && (!class.Permanent || !strings.Contains(class.Error(), "no b")) {
					t.Errorf("record %d: got %v", i, err)
				}
			}
			if len(sizes) < 3 || sizes[0] != 3 {
				t.Errorf("requests of %v records", sizes)
			}
		})
	}
}

// TestOAuth2 gets tokens from a server, and another one when the receiver does not take the last.
func TestOAuth2(t *testing.T) {
	var made atomic.Int32
	tokens := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if id, secret, _ := r.BasicAuth(); id != "ferry" || secret != "cl13nt-s3cr3t" || r.FormValue("grant_type") != "client_credentials" {
			http.Error(w, `{"error":"invalid_client","error_description":"cl13nt"}`, http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"bearer","expires_in":3600}`, made.Add(1))
	})
	var valid atomic.Value
	valid.Store("token-1")
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+valid.Load().(string) {
			http.Error(w, "not "+r.Header.Get("Authorization"), http.StatusUnauthorized)
		}
	})
	path := filepath.Join(t.TempDir(), "secret")
	rewrite(t, path, []byte("an0ther-s3cr3t\n"))
	sink := open(t, func(c *Config) {
		c.URL, c.InsecureCredentials = url, true
		c.Auth = &Auth{OAuth2: &sinks.OAuth2{TokenURL: tokens, ClientID: "ferry", ClientSecretFile: path}}
	})
	deliver := func() *sinks.Error {
		return sinks.Classify(sinks.PerRecord(sink.Deliver(t.Context(), records(1, "a")), 1)[0])
	}
	refused := func(what string, class *sinks.Error) {
		t.Helper()
		if class == nil || class.Permanent || class.Reason != sinks.ReasonUnauthorized || strings.Contains(class.Error(), "s3cr3t") || strings.Contains(class.Error(), "token-") {
			t.Errorf("%s: got %v", what, class)
		}
	}
	refused("another secret", deliver())
	rewrite(t, path, []byte("cl13nt-s3cr3t\n"))
	for range 3 {
		if class := deliver(); class != nil {
			t.Fatal(class)
		}
	}
	valid.Store("token-2") // the first one was revoked
	refused("a revoked token", deliver())
	if class := deliver(); class != nil || made.Load() != 2 {
		t.Errorf("got %v and %d tokens, want 2 tokens", class, made.Load())
	}
}
