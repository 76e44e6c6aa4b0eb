package webhook

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	sink := &Sink{now: func() time.Time { return now }}
	tests := map[string]time.Duration{
		"":                                 0,
		"7":                                7 * time.Second,
		"0":                                0,
		"-5":                               0,
		"soon":                             0,
		"-9223372037":                      0, // times a second, it is beyond int64
		"-9999999999999":                   0,
		"1.5":                              0,
		"7, 8":                             0,
		"599":                              599 * time.Second,
		"601":                              sinks.MaxRetryAfter,
		"9223372037":                       sinks.MaxRetryAfter,
		"9223372036854775807":              sinks.MaxRetryAfter,
		"99999999999999999999":             sinks.MaxRetryAfter,
		"Fri, 31 Dec 9999 23:59:59 GMT":    sinks.MaxRetryAfter,
		"Sat, 21 Nov 2026 00:01:30 GMT":    90 * time.Second,
		"Saturday, 21-Nov-26 00:00:02 GMT": 2 * time.Second,
		"Sat, 21 Nov 2020 00:01:30 GMT":    0,
	}
	for value, want := range tests {
		if got := sink.retryAfter(value); got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}

	r := newReceiver(t, nil)
	at := time.Now().Add(9 * time.Minute)
	for value, least := range map[string]time.Duration{"3": 3 * time.Second, at.UTC().Format(http.TimeFormat): 8 * time.Minute} {
		r.setAnswer(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Retry-After", value)
			w.WriteHeader(http.StatusTooManyRequests)
			return false
		})
		err := open(t, func(c *Config) { c.URL = r.url() }).Deliver(t.Context(), records(1, "a"))
		if got := sinks.Classify(err).RetryAfter; got < least || got > least+time.Minute {
			t.Errorf("%s: got %v, want about %v", value, got, least)
		}
	}
}

// TestEarlyRefusal checks that the answer of a receiver that does not read a large body arrives: the request has an Expect
// header, and a refusal keeps the body back. The server reads all that comes of the body.
func TestEarlyRefusal(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	type request struct {
		header http.Header
		body   int64
	}
	got := make(chan request, 1)
	var done sync.WaitGroup
	defer done.Wait()
	defer listener.Close()
	done.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			reader := bufio.NewReader(conn)
			req, err := http.ReadRequest(reader)
			if err != nil {
				t.Error(err)
				return
			}
			status := http.StatusRequestEntityTooLarge
			if req.ContentLength < 1000 {
				status = http.StatusOK
			}
			fmt.Fprintf(conn, "HTTP/1.1 %d x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status)
			n, _ := io.Copy(io.Discard, reader) // until the sink closes the connection
			_ = conn.Close()
			got <- request{req.Header, n}
		}
	})
	sink := open(t, func(c *Config) { c.URL = "http://" + listener.Addr().String() })
	if err := sink.Deliver(t.Context(), records(1, "a")); err != nil {
		t.Error(err)
	}
	if r := <-got; r.header.Get("Expect") != "" {
		t.Errorf("a small request asks first: %v", r.header)
	}
	record := sinktest.NewRecord("a", 1)
	record.Body = []byte(`"` + strings.Repeat("x", 20<<20) + `"`)
	class := sinks.Classify(sink.Deliver(t.Context(), []sinks.Record{record}))
	if class == nil || !class.Permanent || class.Reason != sinks.ReasonTooLarge {
		t.Errorf("got %v, want a permanent %s", class, sinks.ReasonTooLarge)
	}
	// On a machine that needs more than a second for the answer the body comes all the same.
	r := <-got
	if r.header.Get("Expect") != "100-continue" {
		t.Errorf("got header %v, want it to ask first", r.header)
	}
	t.Logf("%d bytes of the body were sent", r.body)
}

// TestEndlessAnswer checks that neither memory nor time goes into an answer that does not end.
func TestEndlessAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		for {
			if _, err := io.WriteString(w, strings.Repeat("no ", 1000)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	err := open(t, func(c *Config) { c.URL = server.URL }).Deliver(t.Context(), records(1, "a"))
	if class := sinks.Classify(err); class == nil || class.Reason != sinks.ReasonUnavailable {
		t.Errorf("got %v, want %s", err, sinks.ReasonUnavailable)
	}
	if len(err.Error()) > 400 {
		t.Errorf("got an error of %d bytes", len(err.Error()))
	}
}

// TestSwitchingProtocols: behind a 101 the connection is no body, and cancelling the request does not end it.
func TestSwitchingProtocols(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		<-done
	}))
	defer server.Close()
	sink := open(t, func(c *Config) { c.URL = server.URL })
	ended := make(chan error, 1)
	go func() { ended <- sink.Deliver(t.Context(), records(1, "a")) }()
	select {
	case err := <-ended:
		if class := sinks.Classify(err); class == nil || class.Permanent {
			t.Errorf("got %v, want a transient error", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the call does not end")
	}
}

// TestOpenAnswer: the status decides. A body that stays open costs neither the call's time nor the records that an array
// can be taken apart for.
func TestOpenAnswer(t *testing.T) {
	ca := sinktest.NewAuthority(t)
	caFile := write(t, "ca.pem", ca.PEM())
	batch := records(4, "a", "b", "c", "d")
	const bad = 2
	for name, server := range map[string]*tls.Config{"HTTP/1.1": nil, "HTTP/2": ca.ServerConfig("127.0.0.1")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, server)
			r.setAnswer(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
				if strings.Contains(string(body), batch[bad].ID) {
					w.WriteHeader(http.StatusBadRequest)
				}
				_, _ = io.WriteString(w, "the beginning")
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				<-req.Context().Done()
				return false
			})
			sink := open(t, func(c *Config) {
				c.URL, c.Batch.MaxRecords, c.Timeout = r.url(), 10, 40*time.Second
				if server != nil {
					c.TLS = &sinks.TLS{CAFile: caFile}
				}
			})
			start := time.Now()
			errs := sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch)) // 5 requests, 1 s each
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
			for i, err := range errs {
				if i != bad && err != nil {
					t.Errorf("record %d, which got a 200: %v", i, err)
				}
			}
			if class := sinks.Classify(errs[bad]); class == nil || !class.Permanent || !strings.Contains(errs[bad].Error(), "the beginning") {
				t.Errorf("record %d, which got a 400: got %v, want it permanent, with what there is of the answer", bad, errs[bad])
			}
		})
	}
	t.Run("little time", func(t *testing.T) { // less for the whole call than the bound on one answer
		t.Parallel()
		r := newReceiver(t, nil)
		r.setAnswer(func(w http.ResponseWriter, req *http.Request, _ []byte) bool {
			w.WriteHeader(http.StatusBadRequest)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			<-req.Context().Done()
			return false
		})
		batch := records(2, "a", "b")
		for try := 1; ; try++ { // so short a time is a bet on the machine
			sink := open(t, func(c *Config) {
				c.URL, c.Batch.MaxRecords, c.Timeout = r.url(), 10, 1500*time.Millisecond
			})
			permanent := 0
			for _, err := range sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch)) {
				if class := sinks.Classify(err); class != nil && class.Permanent {
					permanent++
				}
			}
			if permanent == len(batch) {
				break
			}
			if try == 5 {
				t.Fatalf("got %d records refused for good, want each of %d", permanent, len(batch))
			}
		}
	})
}

func TestExcerpt(t *testing.T) {
	long := strings.Repeat("s3cret-", 600)
	s := &secrets{hidden: []string{"tok/en+1&x", "pa\"ss", long}}
	tests := map[string]string{
		"plain":                              "plain",
		"a\x00b\x1b[31m \r\n\t c":            "a b [31m c",
		"got tok/en+1&x here":                "got [masked] here",
		`{"t":"tok\/en+1\u0026x"}`:           `{"t":"[masked]"}`,
		"q=" + url.QueryEscape("tok/en+1&x"): "q=[masked]",
		`"pa\"ss"`:                           `"[masked]"`,
		"bad \xff utf8":                      "bad � utf8",
		strings.Repeat("ä", 300):             strings.Repeat("ä", 200) + "…",
		// As much as is read, ending within a secret.
		(strings.Repeat(long, maxRead/len(long)) + long)[:maxRead]: "",
	}
	for text, want := range tests {
		if got := s.excerpt(text); got != want {
			t.Errorf("%.60q: got %.300q, want %.300q", text, got, want)
		}
	}
}

func FuzzExcerpt(f *testing.F) {
	f.Add("token-123456", "the token-123456 is wrong")
	f.Fuzz(func(t *testing.T, secret, text string) {
		if len(secret) < 10 || strings.Contains("[masked] […]", secret) {
			t.Skip()
		}
		s := &secrets{hidden: []string{secret}}
		for _, text := range []string{text, text + secret, secret + text} {
			if got := s.excerpt(text); strings.Contains(got, secret) {
				t.Errorf("the secret %q shows in %q", secret, got)
			}
		}
	})
}
