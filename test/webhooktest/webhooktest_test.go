package webhooktest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

func TestMain(m *testing.M) {
	asyncapi.Anything = true
	goleak.VerifyTestMain(m)
}

func TestBodiesAreSplitIntoRecords(t *testing.T) {
	tests := []struct {
		name   string
		header map[string]string
		body   string
		want   []string
	}{
		{"one object", nil, `{"id":"a"}`, []string{"a"}},
		{"array", nil, ` [{"id":"a"},{"id":"b"}]`, []string{"a", "b"}},
		{"binary CloudEvent", map[string]string{"ce-id": "h"}, `{"id":"not this"}`, []string{"h"}},
		{"no id", nil, `{"kind":"Pod"}`, []string{""}},
		{"not JSON", nil, `hello`, []string{""}},
		{"empty", nil, ``, nil},
		{"gzip", map[string]string{"Content-Encoding": "gzip"}, `[{"id":"z"}]`, []string{"z"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := webhooktest.Start(t)
			body := tt.body
			if tt.header["Content-Encoding"] == "gzip" {
				body = compress(t, body)
			}
			if status, _, err := post(t, r, body, tt.header); err != nil || status != http.StatusOK {
				t.Fatalf("got %d and %v, want 200", status, err)
			}
			requests := r.Requests()
			if len(requests) != 1 {
				t.Fatalf("got %d requests, want 1", len(requests))
			}
			if got := ids(r.Accepted()); !slices.Equal(got, tt.want) {
				t.Errorf("got ids %q, want %q", got, tt.want)
			}
			if string(requests[0].Body) != tt.body {
				t.Errorf("got body %q, want %q", requests[0].Body, tt.body)
			}
		})
	}
}

func TestBehaviors(t *testing.T) {
	r := webhooktest.Start(t)
	r.Use(webhooktest.Sequence(
		webhooktest.WhenID(func(id string) bool { return id == "poison" }, webhooktest.Answer{Status: 422}, webhooktest.Accept()),
		webhooktest.Answer{Status: 503, RetryAfter: 2 * time.Second},
		webhooktest.Answer{Reset: true},
		webhooktest.Answer{CloseAfter: time.Millisecond},
	))

	status, header, err := post(t, r, `{"id":"a"}`, nil)
	if err != nil || status != 503 || header.Get("Retry-After") != "2" {
		t.Errorf("first: got %d, Retry-After %q, %v", status, header.Get("Retry-After"), err)
	}
	if _, _, err := post(t, r, `{"id":"a"}`, nil); err == nil {
		t.Error("second: got an answer, want a broken connection")
	}
	if _, _, err := post(t, r, `{"id":"a"}`, nil); !errors.Is(err, io.EOF) {
		t.Errorf("third: got %v, want the end of the connection", err)
	}
	if status, _, err := post(t, r, `[{"id":"a"},{"id":"poison"}]`, nil); err != nil || status != 422 {
		t.Errorf("fourth: got %d, %v", status, err)
	}
	if status, _, err := post(t, r, `[{"id":"a"}]`, nil); err != nil || status != 200 {
		t.Errorf("fifth: got %d, %v", status, err)
	}

	var got []int
	for _, req := range r.Requests() {
		got = append(got, req.Status)
	}
	if want := []int{503, 0, 0, 422, 200}; !slices.Equal(got, want) {
		t.Errorf("got statuses %v, want %v", got, want)
	}
	if got := ids(r.Accepted()); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got accepted ids %q, want one", got)
	}
}

func TestHang(t *testing.T) {
	r := webhooktest.Start(t)
	r.Use(webhooktest.Always(webhooktest.Answer{Hang: true}))
	ctx, cancel := context.WithCancel(t.Context())
	changed := r.Changed()
	go func() { // give up as soon as the request has arrived
		<-changed
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL(), strings.NewReader(`{"id":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.Server().Client().Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the request to hang until it is canceled", err)
	}
}

func TestAfter(t *testing.T) {
	r := webhooktest.Start(t)
	r.Use(webhooktest.Always(webhooktest.Answer{Status: http.StatusOK, After: 30 * time.Millisecond}))
	started := time.Now()
	if status, _, err := post(t, r, `{"id":"a"}`, nil); err != nil || status != http.StatusOK {
		t.Errorf("got %d, %v", status, err)
	}
	if took := time.Since(started); took < 30*time.Millisecond {
		t.Errorf("the answer took %v", took)
	}

	ctx, cancel := context.WithCancel(t.Context())
	r.Use(func(*webhooktest.Request) webhooktest.Answer {
		cancel() // the sender gives up once the request has arrived
		return webhooktest.Answer{Status: http.StatusOK, After: time.Hour}
	})
	changed := r.Changed()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL(), strings.NewReader(`{"id":"b"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.Server().Client().Do(req)
	if err == nil {
		_ = resp.Body.Close()
		t.Error("got an answer before its time")
	}
	<-changed
	if got := ids(r.Accepted()); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got accepted ids %q, want the one that was answered", got)
	}
}

func TestTLS(t *testing.T) {
	r := webhooktest.StartTLS(t)
	if status, _, err := post(t, r, `{"id":"a"}`, nil); err != nil || status != 200 {
		t.Errorf("got %d, %v", status, err)
	}
}

func post(t *testing.T, r *webhooktest.Receiver, body string, header map[string]string) (int, http.Header, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL()+"/hook", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := r.Server().Client().Do(req)
	if err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, resp.Header, resp.Body.Close()
}

func ids(records []webhooktest.Record) []string {
	var ids []string
	for _, r := range records {
		ids = append(ids, r.ID)
	}
	return ids
}

func compress(t *testing.T, s string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
