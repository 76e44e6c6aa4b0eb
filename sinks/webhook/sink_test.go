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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// TestSplittingBySize: a receiver that takes smaller requests only gets them; what is too large alone is refused.
func TestSplittingBySize(t *testing.T) {
	for _, statuses := range [][]int{{400, 413}, {}} { // 413 is about the size of the request, permanent or not
		r := newReceiver(t, nil)
		r.setAnswer(func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
			if len(body) > 1500 {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
			return len(body) <= 1500
		})
		sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords, c.PermanentStatuses = r.url(), 100, statuses })
		batch := records(32, "a", "b", "c", "d", "e", "f", "g", "h")
		if err := sink.Deliver(t.Context(), batch); err != nil {
			t.Errorf("permanent %v: %v", statuses, err)
		}
		var stored []string
		for _, s := range r.stored {
			stored = append(stored, string(s.Body))
		}
		var want []string
		for _, record := range batch {
			want = append(want, string(record.Body))
		}
		if !slices.Equal(stored, want) {
			t.Errorf("permanent %v: got %d records, want all %d in order", statuses, len(stored), len(want))
		}
		batch[5].Body = []byte(`{"id":"large","text":"` + strings.Repeat("x", 2000) + `"}`)
		errs := sinks.PerRecord(sink.Deliver(t.Context(), batch[:8]), 8)
		class := sinks.Classify(errs[5])
		if class == nil || class.Permanent != (len(statuses) > 0) || class.Reason != sinks.ReasonTooLarge {
			t.Errorf("permanent %v: got %v for the large record", statuses, errs[5])
		}
	}
}

// TestPermanentStatuses: the configuration decides, for single records and for arrays.
func TestPermanentStatuses(t *testing.T) {
	r := newReceiver(t, nil)
	bad := records(8, "a", "b", "c", "d", "e", "f", "g", "h")[3]
	code := 0
	r.setAnswer(func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		if strings.Contains(string(body), bad.ID) {
			w.WriteHeader(code)
			return false
		}
		return true
	})
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords, c.PermanentStatuses = r.url(), 10, []int{409, 451, 500} })
	for status, permanent := range map[int]bool{400: false, 401: false, 403: false, 404: false, 422: false, 409: true, 451: true, 500: true, 503: false} {
		code = status
		errs := sinks.PerRecord(sink.Deliver(t.Context(), records(8, "a", "b", "c", "d", "e", "f", "g", "h")), 8)
		for i, err := range errs {
			class := sinks.Classify(err)
			switch {
			case permanent && i != 3 && err != nil:
				t.Errorf("%d: record %d, a neighbour: got %v", status, i, err)
			case i == 3 && (class == nil || class.Permanent != permanent):
				t.Errorf("%d: got %v, want it permanent %t", status, err, permanent)
			case !permanent && class == nil:
				t.Errorf("%d: record %d is acknowledged, and its request was refused", status, i)
			}
		}
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
	at := time.Now().Add(time.Hour)
	for value, least := range map[string]time.Duration{"3": 3 * time.Second, at.UTC().Format(http.TimeFormat): time.Hour - time.Minute} {
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

// TestCredentialsRotate replaces each file while the sink is in use: the next request has what it holds then.
func TestCredentialsRotate(t *testing.T) {
	path := write(t, "credential", []byte("first-1234\n"))
	for name, auth := range map[string]*Auth{
		"bearer token": {BearerTokenFile: path},
		"password":     {Basic: &Basic{Username: "ferry", PasswordFile: path}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, nil)
			rewrite(t, path, []byte("first-1234\n"))
			sink := open(t, func(c *Config) { c.URL, c.Auth = r.url(), auth })
			for _, secret := range []string{"first-1234", "other-5678", "a longer one, with a blank"} {
				rewrite(t, path, []byte(secret+"\n"))
				if err := sink.Deliver(t.Context(), records(1, "a")); err != nil {
					t.Fatal(err)
				}
				want := "Bearer " + secret
				if auth.Basic != nil {
					want = "Basic " + base64.StdEncoding.EncodeToString([]byte("ferry:"+secret))
				}
				if got := r.requests[len(r.requests)-1].Header.Get("Authorization"); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			// Gone for a moment, as in a rotation: that passes, and no request goes out without it.
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			class := sinks.Classify(sink.Deliver(t.Context(), records(1, "a")))
			if class == nil || class.Permanent || class.Reason != sinks.ReasonUnauthorized || len(r.requests) != 3 {
				t.Errorf("without the file: got %v and %d requests", class, len(r.requests))
			}
		})
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

// TestConnections counts connections: one for each call under way and no more, over HTTP/1.1, and one for all over
// HTTP/2, whatever the answers are.
func TestConnections(t *testing.T) {
	ca := sinktest.NewAuthority(t)
	caFile := write(t, "ca.pem", ca.PEM())
	const workers = 8
	for _, test := range []struct {
		name  string
		tls   *tls.Config
		proto int
		conns int
	}{
		{"HTTP/1.1", nil, 1, workers},
		{"HTTP/2", ca.ServerConfig("127.0.0.1"), 2, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newReceiver(t, test.tls)
			sink := open(t, func(c *Config) {
				c.URL, c.Concurrency = r.url(), workers
				if test.tls != nil {
					c.TLS = &sinks.TLS{CAFile: caFile}
				}
			})
			for n := range 20 {
				if err := sink.Deliver(t.Context(), records(1, fmt.Sprint("alone", n))); err != nil {
					t.Fatal(err)
				}
			}
			if r.conns != 1 {
				t.Errorf("got %d connections for requests one after the other, want 1", r.conns)
			}
			// All workers are in a request at the same moment, then go on as they like.
			var together sync.WaitGroup
			together.Add(workers)
			r.setAnswer(func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
				switch {
				case strings.Contains(string(body), "/1/"):
					together.Done()
					together.Wait()
				case strings.Contains(string(body), "/7/"):
					w.WriteHeader(http.StatusServiceUnavailable)
					return false
				}
				return true
			})
			var wg sync.WaitGroup
			for worker := range workers {
				wg.Go(func() {
					for n := range 50 {
						err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord(fmt.Sprint("w", worker), n+1)})
						if (err != nil) != (n+1 == 7) {
							t.Errorf("worker %d, request %d: %v", worker, n, err)
						}
					}
				})
			}
			wg.Wait()
			if r.conns != test.conns || r.requests[0].ProtoMajor != test.proto {
				t.Errorf("got %d connections of %s, want %d", r.conns, r.requests[0].Proto, test.conns)
			}
		})
	}
}

// TestFewStreams: a server that allows one HTTP/2 stream at a time gets more connections, and one that sends each
// connection away after a while is reconnected to.
func TestFewStreams(t *testing.T) {
	ca := sinktest.NewAuthority(t)
	var requests atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1)%20 == 0 {
			w.Header().Set("Connection", "close") // GOAWAY
		}
	}))
	server.EnableHTTP2, server.TLS = true, ca.ServerConfig("127.0.0.1")
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
	server.StartTLS()
	defer server.Close()
	sink := open(t, func(c *Config) {
		c.URL, c.TLS, c.Timeout = server.URL, &sinks.TLS{CAFile: write(t, "ca.pem", ca.PEM())}, 20*time.Second
	})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for n := range 50 {
				if err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord(fmt.Sprint("w", worker), n)}); err != nil {
					t.Errorf("worker %d, request %d: %v", worker, n, err)
				}
			}
		})
	}
	wg.Wait()
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
