package sinks_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/sinks/webhook"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// verifier is a receiver that takes what the reference library of Standard Webhooks verifies with the secret it has at
// the moment, and answers 401 otherwise.
type verifier struct {
	server *httptest.Server

	mu     sync.Mutex // guards what follows
	secret string
	last   http.Header
	body   []byte
}

func newVerifier(t *testing.T) *verifier {
	t.Helper()
	v := &verifier{}
	v.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.last, v.body = r.Header.Clone(), body
		if err == nil {
			err = v.verify(body, r.Header)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
		}
	}))
	t.Cleanup(v.server.Close)
	return v
}

func (v *verifier) verify(body []byte, header http.Header) error {
	wh, err := standardwebhooks.NewWebhook(v.secret)
	if err != nil {
		return err
	}
	return wh.Verify(body, header)
}

func (v *verifier) use(secret string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.secret = secret
}

// TestWebhookSignature rotates a signing secret while records flow, with the receiver changing over at any moment.
func TestWebhookSignature(t *testing.T) {
	oldSecret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("the secret before this one......"))
	newSecret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("the secret after that one......."))
	for name, records := range map[string]int{"one record": 1, "arrays": 10} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			current, previous := filepath.Join(dir, "current"), filepath.Join(dir, "previous")
			put := func(path, content string) {
				t.Helper()
				if err := os.WriteFile(path+".new", []byte(content+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(path+".new", path); err != nil {
					t.Fatal(err)
				}
			}
			put(current, oldSecret)
			receiver := newVerifier(t)
			config := webhook.NewConfig()
			config.URL, config.Batch.MaxRecords = receiver.server.URL, records
			config.Signature = &webhook.Signature{SecretFile: current, PreviousSecretFile: previous}
			sink := openSink(t, config)
			n := 0
			deliver := func(wantErr bool) {
				t.Helper()
				n++
				batch := []sinks.Record{sinktest.NewRecord("a", n), sinktest.NewRecord("b", n)}[:min(records, 2)]
				err := sink.Deliver(within(t, 10*time.Second), batch)
				if (err != nil) != wantErr {
					t.Fatalf("step %d: got error %v, want one %t", n, err, wantErr)
				}
				if class := sinks.Classify(err); class != nil && (class.Permanent || class.Reason != sinks.ReasonUnauthorized) {
					t.Errorf("step %d: got %s, permanent %t; want a refusal that closes the gate", n, class.Reason, class.Permanent)
				}
			}
			receiver.use(oldSecret)
			deliver(false)
			receiver.use(newSecret)
			deliver(true)

			put(previous, oldSecret)
			put(current, newSecret)
			deliver(false)
			receiver.use(oldSecret)
			deliver(false)
			receiver.use(newSecret)
			if err := os.Remove(previous); err != nil {
				t.Fatal(err)
			}
			deliver(false)
			receiver.use(oldSecret)
			deliver(true)

			bare := strings.TrimPrefix(newSecret, "whsec_")
			receiver.use(bare)
			put(current, bare)
			deliver(false)
			receiver.use(newSecret) // the same one
			deliver(false)
		})
	}
}

// TestWebhookSignatureTampered changes each signed part on the way: the reference verifier must notice.
func TestWebhookSignatureTampered(t *testing.T) {
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("the secret before this one......"))
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	receiver := newVerifier(t)
	receiver.use(secret)
	config := webhook.NewConfig()
	config.URL, config.Signature = receiver.server.URL, &webhook.Signature{SecretFile: path}
	if err := openSink(t, config).Deliver(within(t, 10*time.Second), []sinks.Record{sinktest.NewRecord("a", 1)}); err != nil {
		t.Fatal(err)
	}
	old := strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10)
	for name, change := range map[string]func(http.Header, []byte) []byte{
		"body":      func(_ http.Header, body []byte) []byte { return bytes.Replace(body, []byte("text"), []byte("Text"), 1) },
		"id":        func(h http.Header, body []byte) []byte { h.Set("webhook-id", "another"); return body },
		"timestamp": func(h http.Header, body []byte) []byte { h.Set("webhook-timestamp", old); return body },
	} {
		header := receiver.last.Clone()
		if body := change(header, bytes.Clone(receiver.body)); receiver.verify(body, header) == nil {
			t.Errorf("a changed %s was verified", name)
		}
	}
}

// TestWebhookRetryAfter: the pipeline waits as long as a receiver requests, in either form.
func TestWebhookRetryAfter(t *testing.T) {
	t.Parallel()
	const pause = 3 * time.Second
	for name, answer := range map[string]func(until time.Time) webhooktest.Answer{
		"seconds": func(time.Time) webhooktest.Answer { return webhooktest.Answer{RetryAfter: pause} },
		"date":    func(until time.Time) webhooktest.Answer { return webhooktest.Answer{RetryAt: until} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			receiver := webhooktest.Start(t)
			var until time.Time // a date has whole seconds
			receiver.Use(func(r *webhooktest.Request) webhooktest.Answer {
				if !until.IsZero() {
					return webhooktest.Answer{Status: http.StatusOK}
				}
				until = r.Time.Add(pause).Truncate(time.Second)
				asked := answer(until)
				asked.Status = http.StatusServiceUnavailable
				return asked
			})
			config := webhook.NewConfig()
			config.URL = receiver.URL()
			p := runPipeline(t, config, pipeline.Options{Options: shape.Options{Format: shape.FormatJSON}, DeadLetter: refuseLetters{}})
			giveConfigMap(t, p, "a", 1)
			if left := p.Drain(within(t, time.Minute)); left > 0 {
				t.Fatalf("%d records are left", left)
			}
			requests := receiver.Requests()
			if len(requests) != 2 || requests[1].Time.Before(until) {
				t.Errorf("got %d requests, the last at %v, want the second and last after %v", len(requests), requests[len(requests)-1].Time, until)
			}
		})
	}
}

func giveConfigMap(t *testing.T, p *pipeline.Pipeline, name string, version int) {
	t.Helper()
	object, err := delta.NewObject(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"shop","uid":"u-%s","resourceVersion":"%d"}}`, name, name, version))
	if err != nil {
		t.Fatal(err)
	}
	err = handOver(t.Context(), p, &delta.Delta{
		Type: delta.Modified, Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Object: object, Observed: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
}
