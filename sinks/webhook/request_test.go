package webhook

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// A receiver that answers early, late, never, or cuts the connection never sees a body that is mixed of two, though the
// memory of the records is used again as soon as Deliver returns. It has a fake clock: on a busy machine a body would not
// arrive within the sink's time-out.
func TestBodiesAreNotMixed(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, zip := range []string{"none", compressionGzip} {
			t.Run(fmt.Sprintf("http2 %v %s", h2, zip), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { bodiesAreNotMixed(t, h2, zip) })
			})
		}
	}
}

type element struct{ ID, Fill string }

func bodiesAreNotMixed(t *testing.T, h2 bool, zip string) {
	var mu sync.Mutex
	var wrong []string
	whole := 0
	var handlers sync.WaitGroup // which, over HTTP/2, may outlive their server
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		switch rand.N(6) {
		case 0: // without reading
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case 1:
			panic(http.ErrAbortHandler)
		case 2: // a part
			_, _ = io.CopyN(io.Discard, r.Body, 4000)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case 3: // late
			time.Sleep(60 * time.Millisecond)
		}
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(body)
			if err != nil {
				return
			}
			body = z
		}
		text, err := io.ReadAll(body)
		if err != nil {
			return // it was cut
		}
		var got []element
		err = json.Unmarshal(text, &got)
		mu.Lock()
		defer mu.Unlock()
		whole++
		if err != nil || len(got) == 0 {
			wrong = append(wrong, fmt.Sprintf("%v: %.100s", err, text))
		}
		for _, e := range got {
			if call, _, _ := strings.Cut(e.ID, "-"); call != strings.Split(got[0].ID, "-")[0] || e.Fill != strings.Repeat(call[len(call)-1:], len(e.Fill)) {
				wrong = append(wrong, fmt.Sprintf("%s in a request of %s: %.60s", e.ID, got[0].ID, e.Fill))
			}
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	_ = server.Listener.Close()
	network := newPipes()
	server.Listener = network
	if h2 {
		server.EnableHTTP2, server.TLS = true, &tls.Config{SessionTicketsDisabled: true} // see countConnections
		server.StartTLS()
	} else {
		server.Start()
	}
	defer handlers.Wait()
	defer server.Close()
	sink := open(t, func(c *Config) {
		c.URL, c.Compression, c.Timeout, c.Concurrency = server.URL, zip, 40*time.Millisecond, 8
		c.Batch.MaxRecords = 50
		c.TLS = nil
		if h2 {
			c.TLS = &sinks.TLS{InsecureSkipVerify: true}
		}
	})
	sink.client.Transport.(*http.Transport).DialContext = network.dial
	sizes := []int{100, 3000, 30_000, 100_000}
	var callers sync.WaitGroup
	for c := range 8 {
		callers.Go(func() {
			var arena []byte
			for n := range 20 {
				arena = arena[:0]
				var batch []sinks.Record
				call := fmt.Sprintf("%d.%d", n, c)
				for k := range 1 + rand.N(4) {
					from := len(arena)
					arena = fmt.Appendf(arena, `{"id":"%s-%d","fill":"%s"}`, call, k, strings.Repeat(fmt.Sprint(c), sizes[rand.N(len(sizes))]))
					batch = append(batch, sinks.Record{
						ID: fmt.Sprint(call, k), DedupID: fmt.Sprint("p/", call, k), Key: fmt.Sprint(k), ContentType: "application/json",
						BatchContentType: "application/json", Body: arena[from:len(arena):len(arena)],
					})
				}
				_ = sink.Deliver(context.Background(), batch)
				copy(arena, bytes.Repeat([]byte{'!'}, len(arena)))
				clear(batch)
			}
		})
	}
	callers.Wait()
	_ = sink.Close(context.Background())
	mu.Lock()
	defer mu.Unlock()
	if len(wrong) > 0 || whole == 0 {
		t.Errorf("%d of %d bodies are wrong: %.500s", len(wrong), whole, wrong)
	}
}
