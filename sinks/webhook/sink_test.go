package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

func open(t *testing.T, change func(*Config)) *Sink {
	t.Helper()
	config := newConfig(change)
	for _, fault := range config.Validate() {
		if !fault.Warning {
			t.Fatalf("%s: %s", fault.Path, fault.Message)
		}
	}
	sink, err := config.Open(t.Context(), sinks.Env{Name: "hook", UserAgent: "kubeferry/test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close(context.Background()) })
	return sink.(*Sink)
}

func records(n int, names ...string) []sinks.Record {
	batch := make([]sinks.Record, n)
	for i := range batch {
		batch[i] = sinktest.NewRecord(names[i%len(names)], i/len(names)+1)
	}
	return batch
}

func TestSingleRequest(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) {
		c.URL = r.url() + "?a=b"
		c.Method = http.MethodPut
		c.Headers = map[string]string{"X-Team": "audit"}
	})
	record := sinktest.NewRecord("a", 1)
	if err := sink.Deliver(t.Context(), []sinks.Record{record}); err != nil {
		t.Fatal(err)
	}
	req := r.requests[0]
	want := map[string]string{
		"Content-Type": "application/json", "User-Agent": "kubeferry/test", "X-Team": "audit",
		"Webhook-Id": record.DedupID, "Ce-Id": record.Headers["ce-id"], "Content-Encoding": "", "Webhook-Signature": "",
	}
	for name, value := range want {
		if got := req.Header.Get(name); got != value {
			t.Errorf("header %s: got %q, want %q", name, got, value)
		}
	}
	if req.Method != http.MethodPut || req.URL.String() != "/hook?a=b" || string(r.bodies[0]) != string(record.Body) {
		t.Errorf("got %s %s %s", req.Method, req.URL, r.bodies[0])
	}
}

// TestBinaryEvent: Content-Type is the datacontenttype, and there is no header of that name (HTTP binding §3.1.1).
func TestBinaryEvent(t *testing.T) {
	r := newReceiver(t, nil)
	record := sinktest.NewRecord("a", 1)
	record.Headers, record.BatchContentType = nil, ""
	record.Attributes = map[string]string{"id": "x/1", "subject": "/a b", "note": "\"100%\" ä~"}
	if err := open(t, func(c *Config) { c.URL = r.url() }).Deliver(t.Context(), []sinks.Record{record}); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name := range r.requests[0].Header {
		if strings.HasPrefix(name, "Ce-") || name == "Content-Type" {
			got[name] = r.requests[0].Header.Get(name)
		}
	}
	want := map[string]string{
		"Ce-Id": "x/1", "Ce-Subject": "/a%20b", "Ce-Note": "%22100%25%22%20%C3%A4~", "Content-Type": "application/json",
	}
	if !maps.Equal(got, want) || string(r.bodies[0]) != string(record.Body) {
		t.Errorf("got %q and body %s, want %q", got, r.bodies[0], want)
	}
}

func TestArray(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords = r.url(), 10 })
	batch := records(3, "a", "b")
	for i := range batch {
		batch[i].BatchContentType = "application/cloudevents-batch+json"
	}
	for range 2 {
		if err := sink.Deliver(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := sink.Deliver(t.Context(), batch[:1]); err != nil {
		t.Fatal(err)
	}
	if got, want := string(r.bodies[0]), fmt.Sprintf("[%s,%s,%s]", batch[0].Body, batch[1].Body, batch[2].Body); got != want {
		t.Errorf("got body %s, want %s", got, want)
	}
	if got, want := string(r.bodies[2]), fmt.Sprintf("[%s]", batch[0].Body); got != want {
		t.Errorf("one record: got body %s, want %s", got, want)
	}
	first, second, one := r.requests[0].Header, r.requests[1].Header, r.requests[2].Header
	if got := first.Get("Content-Type"); got != batch[0].BatchContentType {
		t.Errorf("got content type %q, want %q", got, batch[0].BatchContentType)
	}
	if first.Get("Webhook-Id") != second.Get("Webhook-Id") {
		t.Error("the same batch was sent under two ids")
	}
	if got := one.Get("Webhook-Id"); got != batch[0].DedupID {
		t.Errorf("one record: got id %q, want %q", got, batch[0].DedupID)
	}
	if first.Get("Ce-Id") != "" {
		t.Error("an array carries the headers of one record")
	}
}

// TestMixedBatch is what a dead letter sink of several pipelines gets.
func TestMixedBatch(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords = r.url(), 10 })
	batch := records(5, "a", "b")
	batch[1].BatchContentType, batch[2].BatchContentType = "", ""
	if err := sink.Deliver(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	var shapes []string
	for _, body := range r.bodies {
		shapes = append(shapes, fmt.Sprintf("%c%d", body[0], strings.Count(string(body), `"n":`)))
	}
	if want := []string{"[1", "{1", "{1", "[2"}; !slices.Equal(shapes, want) {
		t.Errorf("got requests %q, want %q", shapes, want)
	}
}

func TestSplitting(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords = r.url(), 100 })
	batch := records(64, "a", "b", "c", "d", "e", "f", "g", "h")
	const bad = 17 // the third record of "b"
	r.poisoned[batch[bad].ID] = true
	errs := sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch))
	for i, err := range errs {
		class := sinks.Classify(err)
		switch {
		case i == bad:
			if class == nil || !class.Permanent || class.Reason != sinks.ReasonRejected {
				t.Errorf("bad record: got %v", err)
			}
		case batch[i].Key == batch[bad].Key && i > bad:
			if class == nil || class.Permanent {
				t.Errorf("record %d, behind the bad one: got %v, want it held", i, err)
			}
		case err != nil:
			t.Errorf("record %d: got %v, want it acknowledged", i, err)
		}
	}
	if got := len(r.requests); got > 13 { // 1 + 2 per halving of 64
		t.Errorf("got %d requests to find one record of 64", got)
	}
}

// TestSplittingStops checks that a receiver that goes away while a batch is narrowed down is left alone.
func TestSplittingStops(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords = r.url(), 100 })
	requests := 0
	r.setAnswer(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		code := []int{http.StatusBadRequest, http.StatusOK, http.StatusServiceUnavailable, http.StatusOK}[min(requests, 3)]
		requests++
		w.WriteHeader(code)
		return code == http.StatusOK
	})
	errs := sinks.PerRecord(sink.Deliver(t.Context(), records(8, "a", "b", "c", "d", "e", "f", "g", "h")), 8)
	for i, err := range errs {
		if got, want := err == nil, i < 4; got != want {
			t.Errorf("record %d: got %v, want acknowledged %t", i, err, want)
		}
		if err != nil && sinks.Classify(err).Reason != sinks.ReasonUnavailable {
			t.Errorf("record %d: got %v, want it unavailable", i, err)
		}
	}
	if requests != 3 {
		t.Errorf("got %d requests, want 3", requests)
	}
}

func TestStatuses(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL = r.url() })
	tests := []struct {
		code      int
		reason    sinks.Reason // empty: accepted
		permanent bool
	}{
		{200, "", false},
		{202, "", false},
		{204, "", false},
		{304, sinks.ReasonNotFound, false},
		{400, sinks.ReasonRejected, true},
		{401, sinks.ReasonUnauthorized, false},
		{403, sinks.ReasonUnauthorized, false},
		{404, sinks.ReasonNotFound, false},
		{405, sinks.ReasonOther, false},
		{408, sinks.ReasonTimeout, false},
		{409, sinks.ReasonOther, false},
		{410, sinks.ReasonNotFound, false},
		{413, sinks.ReasonTooLarge, true},
		{415, sinks.ReasonRejected, true},
		{422, sinks.ReasonRejected, true},
		{429, sinks.ReasonThrottled, false},
		{500, sinks.ReasonUnavailable, false},
		{502, sinks.ReasonUnavailable, false},
		{503, sinks.ReasonUnavailable, false},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.code), func(t *testing.T) {
			r.setAnswer(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				w.WriteHeader(test.code)
				return false
			})
			class := sinks.Classify(sink.Deliver(t.Context(), records(1, "a")))
			switch {
			case test.reason == "":
				if class != nil {
					t.Errorf("got %v, want it accepted", class)
				}
			case class == nil:
				t.Error("got it accepted")
			case class.Reason != test.reason || class.Permanent != test.permanent:
				t.Errorf("got %s, permanent %t; want %s, %t", class.Reason, class.Permanent, test.reason, test.permanent)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	sink := &Sink{now: func() time.Time { return now }}
	tests := map[string]time.Duration{
		"":                                 0,
		"7":                                7 * time.Second,
		"0":                                0,
		"-5":                               0,
		"soon":                             0,
		"9223372036854775807":              maxRetryAfter,
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
	r.setAnswer(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(http.StatusTooManyRequests)
		return false
	})
	err := open(t, func(c *Config) { c.URL = r.url() }).Deliver(t.Context(), records(1, "a"))
	if got := sinks.Classify(err).RetryAfter; got != 3*time.Second {
		t.Errorf("got %v, want 3s", got)
	}
}

func TestSignature(t *testing.T) {
	r := newReceiver(t, nil)
	oldKey, newKey := []byte("the secret before this one......"), []byte("bare secret, without a prefix")
	current := write(t, "current", []byte("whsec_"+base64.StdEncoding.EncodeToString(oldKey)+"\n"))
	previous := current + ".previous"
	sink := open(t, func(c *Config) {
		c.URL, c.Compression = r.url(), compressionGzip
		c.Signature = &Signature{SecretFile: current, PreviousSecretFile: previous}
	})
	record := sinktest.NewRecord("a", 1)
	verify := func(keys ...[]byte) {
		t.Helper()
		if err := sink.Deliver(t.Context(), []sinks.Record{record}); err != nil {
			t.Fatal(err)
		}
		header := r.requests[len(r.requests)-1].Header
		var want []string
		for _, key := range keys {
			mac := hmac.New(sha256.New, key)
			fmt.Fprintf(mac, "%s.%s.%s", record.DedupID, header.Get("Webhook-Timestamp"), record.Body)
			want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		}
		if got := header.Get("Webhook-Signature"); got != strings.Join(want, " ") {
			t.Errorf("got signature %q, want %q", got, want)
		}
	}
	verify(oldKey)
	// Rotation: the old secret becomes the previous one, and goes at the end.
	rewrite(t, previous, []byte("whsec_"+base64.StdEncoding.EncodeToString(oldKey)))
	rewrite(t, current, newKey)
	verify(newKey, oldKey)
	if err := os.Remove(previous); err != nil {
		t.Fatal(err)
	}
	verify(newKey)
	// A secret that is missing must not lead to requests without a signature.
	if err := os.Remove(current); err != nil {
		t.Fatal(err)
	}
	class := sinks.Classify(sink.Deliver(t.Context(), []sinks.Record{record}))
	if class == nil || class.Permanent || class.Reason != sinks.ReasonUnauthorized {
		t.Errorf("without the secret: got %v, want a transient error", class)
	}
}

// TestSignatureKnown checks against the example of the Standard Webhooks reference libraries.
func TestSignatureKnown(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := sign([][]byte{key}, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestConnectionsAreReused(t *testing.T) {
	ca := sinktest.NewAuthority(t)
	for _, tlsConfig := range []*tls.Config{nil, ca.ServerConfig("127.0.0.1")} {
		r := newReceiver(t, tlsConfig)
		sink := open(t, func(c *Config) {
			c.URL = r.url()
			if tlsConfig != nil {
				c.TLS = &sinks.TLS{CAFile: write(t, "ca.pem", ca.PEM())}
			}
		})
		deliver := func(name string) {
			for i := range 40 {
				if err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord(name, i)}); err != nil {
					t.Error(err)
				}
			}
		}
		deliver("alone")
		if r.conns != 1 {
			t.Errorf("got %d connections for requests one after the other, want 1", r.conns)
		}
		// Also answers that are refusals must leave the connection usable.
		r.status(http.StatusServiceUnavailable)
		_ = sink.Deliver(t.Context(), records(1, "refused"))
		r.mend()
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() { deliver(fmt.Sprint("w", worker)) })
		}
		wg.Wait()
		r.mu.Lock()
		if r.conns > 16 {
			t.Errorf("got %d connections for 8 workers", r.conns)
		}
		if tlsConfig != nil && (r.conns != 1 || r.requests[0].ProtoMajor != 2) {
			t.Errorf("got %d connections of %s, want 1 of HTTP/2", r.conns, r.requests[0].Proto)
		}
		r.mu.Unlock()
	}
}

func TestTLS(t *testing.T) {
	ca, stranger := sinktest.NewAuthority(t), sinktest.NewAuthority(t)
	caFile := write(t, "ca.pem", ca.PEM())
	tests := []struct {
		name   string
		server *tls.Config
		tls    *sinks.TLS
		ok     bool
	}{
		{"private CA", ca.ServerConfig("127.0.0.1"), &sinks.TLS{CAFile: caFile}, true},
		{"system's CAs", ca.ServerConfig("127.0.0.1"), nil, false},
		{"another CA", stranger.ServerConfig("127.0.0.1"), &sinks.TLS{CAFile: caFile}, false},
		{"another address", ca.ServerConfig("127.0.0.2"), &sinks.TLS{CAFile: caFile}, false},
		{"another name", ca.ServerConfig("example.com"), &sinks.TLS{CAFile: caFile}, false},
		{"server name", ca.ServerConfig("example.com"), &sinks.TLS{CAFile: caFile, ServerName: "example.com"}, true},
		{"not verified", stranger.ServerConfig("example.com"), &sinks.TLS{InsecureSkipVerify: true}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newReceiver(t, test.server)
			err := open(t, func(c *Config) { c.URL, c.TLS = r.url(), test.tls }).Deliver(t.Context(), records(1, "a"))
			if (err == nil) != test.ok {
				t.Errorf("got error %v, want success %t", err, test.ok)
			}
			if class := sinks.Classify(err); class != nil && (class.Permanent || class.Reason != sinks.ReasonUnreachable) {
				t.Errorf("got %s, permanent %t; want a transient %s", class.Reason, class.Permanent, sinks.ReasonUnreachable)
			}
		})
	}
}

func TestClientCertificateRotates(t *testing.T) {
	ca := sinktest.NewAuthority(t)
	serverConfig := ca.ServerConfig("127.0.0.1")
	serverConfig.ClientAuth, serverConfig.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool()
	r := newReceiver(t, serverConfig)

	stranger := sinktest.NewAuthority(t)
	cert, key := stranger.Issue("stranger")
	certFile, keyFile := write(t, "cert.pem", cert), write(t, "key.pem", key)
	sink := open(t, func(c *Config) {
		c.URL = r.url()
		c.TLS = &sinks.TLS{CAFile: write(t, "ca.pem", ca.PEM()), CertFile: certFile, KeyFile: keyFile}
	})
	// HTTP/2 hides why the connection ended: TLS 1.3 refuses a certificate only after the handshake.
	class := sinks.Classify(sink.Deliver(t.Context(), records(1, "a")))
	if class == nil || class.Permanent || class.Reason != sinks.ReasonUnauthorized && class.Reason != sinks.ReasonUnreachable {
		t.Errorf("certificate of a stranger: got %v, want a transient %s", class, sinks.ReasonUnauthorized)
	}
	for _, name := range []string{"first", "second"} {
		cert, key := ca.Issue(name)
		rewrite(t, certFile, cert)
		rewrite(t, keyFile, key)
		r.server.CloseClientConnections()
		// The request that finds the old connection closed may fail, once.
		err := sink.Deliver(t.Context(), records(1, name))
		if err != nil {
			err = sink.Deliver(t.Context(), records(1, name))
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := r.requests[len(r.requests)-1].TLS.PeerCertificates[0].Subject.CommonName; got != name {
			t.Errorf("got client certificate %q, want %q", got, name)
		}
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	r := newReceiver(t, nil)
	elsewhere := newReceiver(t, nil)
	r.setAnswer(func(w http.ResponseWriter, req *http.Request, _ []byte) bool {
		http.Redirect(w, req, elsewhere.url()+"?token=hidden", http.StatusTemporaryRedirect)
		return false
	})
	err := open(t, func(c *Config) { c.URL = r.url() }).Deliver(t.Context(), records(1, "a"))
	class := sinks.Classify(err)
	if class == nil || class.Permanent || !strings.Contains(err.Error(), "redirects are not followed") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("got %v", err)
	}
	if len(elsewhere.requests) != 0 {
		t.Error("the redirect was followed")
	}
}

func TestTimeoutIsTheSinksOwn(t *testing.T) {
	r := newReceiver(t, nil)
	r.hang()
	sink := open(t, func(c *Config) { c.URL, c.Timeout = r.url(), 50*time.Millisecond })
	class := sinks.Classify(sink.Deliver(t.Context(), records(1, "a")))
	if class == nil || class.Permanent || class.Reason != sinks.ReasonTimeout {
		t.Errorf("got %v, want %s", class, sinks.ReasonTimeout)
	}
}

// TestEarlyRefusal checks that the answer of a receiver that does not read a large body is heard.
func TestEarlyRefusal(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ContentLength > 1000 {
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	}))
	defer server.Close()
	sink := open(t, func(c *Config) { c.URL = server.URL })
	record := sinktest.NewRecord("a", 1)
	record.Body = []byte(`"` + strings.Repeat("x", 20<<20) + `"`)
	class := sinks.Classify(sink.Deliver(t.Context(), []sinks.Record{record}))
	if class == nil || !class.Permanent || class.Reason != sinks.ReasonTooLarge {
		t.Errorf("got %v, want a permanent %s", class, sinks.ReasonTooLarge)
	}
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

func TestHeaderThatCannotBeSent(t *testing.T) {
	r := newReceiver(t, nil)
	record := sinktest.NewRecord("a", 1)
	record.Headers = map[string]string{"ce-subject": "a\nb"}
	class := sinks.Classify(open(t, func(c *Config) { c.URL = r.url() }).Deliver(t.Context(), []sinks.Record{record}))
	if class == nil || !class.Permanent || class.Reason != sinks.ReasonEncode {
		t.Errorf("got %v, want a permanent %s", class, sinks.ReasonEncode)
	}
}

// TestProxy runs itself again, because the environment's proxy is read once per process, and never used for an
// address of the loopback.
func TestProxy(t *testing.T) {
	if target := os.Getenv("KUBEFERRY_TEST_TARGET"); target != "" {
		sink := open(t, func(c *Config) { c.URL = target })
		if err := sink.Deliver(t.Context(), records(1, "a")); err != nil {
			fmt.Println("error:", err)
		}
		return
	}
	var mu sync.Mutex
	var seen []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, req.Method+" "+req.URL.String()+" "+req.Header.Get("Proxy-Authorization"))
	}))
	defer proxy.Close()
	run := func(proxyURL string) string {
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxy$", "-test.v")
		command.Env = append(os.Environ(), "HTTP_PROXY="+proxyURL, "http_proxy="+proxyURL, "NO_PROXY=", "no_proxy=",
			"KUBEFERRY_TEST_TARGET=http://receiver.invalid/hook")
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	out := run(strings.Replace(proxy.URL, "://", "://user:proxy-secret@", 1))
	want := "POST http://receiver.invalid/hook Basic " + base64.StdEncoding.EncodeToString([]byte("user:proxy-secret"))
	if strings.Contains(out, "error:") || !slices.Equal(seen, []string{want}) {
		t.Errorf("the proxy saw %q, want %q; output %s", seen, want, out)
	}
	if out := run("http://user:proxy-secret@bad host:x"); !strings.Contains(out, "error:") || strings.Contains(out, "proxy-secret") {
		t.Errorf("with a proxy that is no URL: got %s", out)
	}
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
		(strings.Repeat(long, maxRead/len(long)) + long)[:maxRead]: strings.Repeat("[masked]", maxRead/len(long)),
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

func TestOpenNeedsItsFiles(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"token":       func(c *Config) { c.Auth = &Auth{BearerTokenFile: "/no/such/file"} },
		"password":    func(c *Config) { c.Auth = &Auth{Basic: &Basic{Username: "u", PasswordFile: "/no/such/file"}} },
		"secret":      func(c *Config) { c.Signature = &Signature{SecretFile: "/no/such/file"} },
		"bad secret":  func(c *Config) { c.Signature = &Signature{SecretFile: write(t, "s", []byte("whsec_%%%"))} },
		"authorities": func(c *Config) { c.TLS = &sinks.TLS{CAFile: "/no/such/file"} },
		"certificate": func(c *Config) { c.TLS = &sinks.TLS{CertFile: "/no/such/file", KeyFile: "/no/such/file"} },
	} {
		config := newConfig(func(c *Config) {
			c.URL = "https://example.com"
			change(c)
		})
		if _, err := config.Open(t.Context(), sinks.Env{}); err == nil {
			t.Errorf("%s: got no error", name)
		} else if name != "bad secret" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
