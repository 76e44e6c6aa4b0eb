package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/internal/proxy"
)

// lines is a server of endless lines.
func lines(t *testing.T) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for n := 0; r.Context().Err() == nil; n++ {
			if _, err := fmt.Fprintf(w, "line-%d\n", n); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func TestTCP(t *testing.T) {
	p := proxy.NewTCP(t, strings.TrimPrefix(lines(t).URL, "http://"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	get := func(ctx context.Context) (*bufio.Reader, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Addr(), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return bufio.NewReader(resp.Body), nil
	}
	if _, err := get(ctx); err == nil {
		t.Error("it answers before it came")
	}
	p.Come()
	body, err := get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := body.ReadString('\n'); err != nil || line != "line-0\n" {
		t.Errorf("got %q, %v", line, err)
	}
	p.Cut()
	if _, err := io.Copy(io.Discard, body); err == nil {
		t.Error("a connection that was cut ends well")
	}

	p.Stall()
	short, cancelShort := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancelShort()
	if _, err := get(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stalled: %v, want the deadline", err)
	}
	p.Come()
	if _, err := get(ctx); err != nil {
		t.Error(err)
	}
	p.Leave()
	var refused *net.OpError
	if _, err := get(ctx); !errors.As(err, &refused) {
		t.Errorf("away: %v, want a refusal", err)
	}
}

func TestHTTP(t *testing.T) {
	p := proxy.NewHTTP(t, &rest.Config{Host: lines(t).URL})
	hold := make(chan struct{})
	close(hold)
	tests := []struct {
		name  string
		fault *proxy.Fault
		code  int
		body  string // all of it
		fails bool   // the body, or without a code the request
	}{
		{name: "status", fault: &proxy.Fault{Hold: hold, Status: &metav1.Status{Code: 410, Reason: metav1.StatusReasonExpired}}, code: 410, body: `{"metadata":{},"reason":"Expired","code":410}` + "\n"},
		{name: "gateway", fault: &proxy.Fault{Wait: time.Millisecond, Code: 503, Body: "no upstream"}, code: 503, body: "no upstream\n"},
		{name: "reset", fault: &proxy.Fault{Reset: true}, fails: true},
		{name: "cut", fault: &proxy.Fault{After: 2, Cut: true}, code: 200, body: "line-0\nline-1\nlin", fails: true},
		{name: "instead", fault: &proxy.Fault{Instead: "other"}, code: 200, body: "other\n"},
		{name: "instead of the third", fault: &proxy.Fault{After: 2, Instead: "other"}, code: 200, body: "line-0\nline-1\nother\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p.Use(func(*http.Request) *proxy.Fault { return tt.fault })
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Config().Host+"/x?watch=true", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if tt.code == 0 {
				if err == nil {
					_ = resp.Body.Close()
					t.Error("no error")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != tt.code || string(body) != tt.body || (err != nil) != tt.fails {
				t.Errorf("got %d %q, %v", resp.StatusCode, body, err)
			}
			requests := p.Requests()
			last := requests[len(requests)-1]
			if last.Status != tt.code || last.Path != "/x" || last.Query.Get("watch") != "true" || last.Forwarded != (tt.code == 200) {
				t.Errorf("got %+v", last)
			}
		})
	}
}

// What is swallowed is not missed by whoever only looks at the connection.
func TestSwallow(t *testing.T) {
	p := proxy.NewHTTP2(t, &rest.Config{Host: lines(t).URL})
	p.Use(func(*http.Request) *proxy.Fault { return &proxy.Fault{After: 1, Instead: "other", Swallow: true} })
	client, err := rest.HTTPClientFor(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Config().Host+"/x?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.ProtoMajor != 2 {
		t.Errorf("the proxy speaks %s", resp.Proto)
	}
	body := bufio.NewReader(resp.Body)
	for _, want := range []string{"line-0\n", "other\n"} {
		if line, err := body.ReadString('\n'); err != nil || line != want {
			t.Fatalf("got %q, %v, want %q", line, err, want)
		}
	}
	time.AfterFunc(200*time.Millisecond, cancel)
	if line, err := body.ReadString('\n'); !errors.Is(err, context.Canceled) || line != "" {
		t.Errorf("got %q, %v, want nothing until the request is given up", line, err)
	}
	// Nor does another request get an answer on that connection.
	short, cancelShort := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancelShort()
	answer, err := client.Do(req.Clone(short))
	if err == nil {
		_ = answer.Body.Close()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want no answer", err)
	}
}
