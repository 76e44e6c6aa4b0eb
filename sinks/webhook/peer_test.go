package webhook

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// receiver is a real HTTP server that stores what it gets.
type receiver struct {
	t    *testing.T
	tls  *tls.Config // nil for plain http
	addr string

	server *httptest.Server

	mu       sync.Mutex // guards what follows
	answer   func(http.ResponseWriter, *http.Request, []byte) bool
	poisoned map[string]bool
	failing  map[string]bool
	mended   chan struct{} // closed by mend
	stored   []sinktest.Stored
	requests []*http.Request
	bodies   [][]byte
	conns    int
}

func newReceiver(t *testing.T, tlsConfig *tls.Config) *receiver {
	t.Helper()
	return newReceiverOn(t, tlsConfig, listen(t, "127.0.0.1:0"))
}

func newReceiverOn(t *testing.T, tlsConfig *tls.Config, listener net.Listener) *receiver {
	r := &receiver{t: t, tls: tlsConfig, poisoned: map[string]bool{}, failing: map[string]bool{}, mended: make(chan struct{})}
	r.serve(listener)
	t.Cleanup(func() {
		r.mend()
		r.server.Close()
	})
	return r
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func (r *receiver) serve(listener net.Listener) {
	r.addr = listener.Addr().String()
	r.server = &httptest.Server{Listener: listener, EnableHTTP2: r.tls != nil, Config: &http.Server{
		Handler:  http.HandlerFunc(r.handle),
		ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.conns++
			}
		},
	}}
	if r.tls == nil {
		r.server.Start()
		return
	}
	r.server.TLS = r.tls.Clone()
	r.server.StartTLS()
}

func (r *receiver) url() string {
	if r.tls != nil {
		return "https://" + r.addr + "/hook"
	}
	return "http://" + r.addr + "/hook"
}

func (r *receiver) setAnswer(f func(http.ResponseWriter, *http.Request, []byte) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

// status makes the receiver answer every request with code, echoing its headers.
func (r *receiver) status(code int) {
	r.setAnswer(func(w http.ResponseWriter, req *http.Request, _ []byte) bool {
		w.WriteHeader(code)
		fmt.Fprintf(w, "not now\x00\x1b[31m\n%v", req.Header)
		return false
	})
}

func (r *receiver) hang() {
	r.setAnswer(func(_ http.ResponseWriter, req *http.Request, _ []byte) bool {
		r.mu.Lock()
		mended := r.mended
		r.mu.Unlock()
		select {
		case <-mended:
		case <-req.Context().Done():
		}
		return false
	})
}

func (r *receiver) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer, r.failing = nil, map[string]bool{}
	close(r.mended)
	r.mended = make(chan struct{})
}

func (r *receiver) handle(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.requests, r.bodies = append(r.requests, req), append(r.bodies, body)
	answer := r.answer
	r.mu.Unlock()
	if answer != nil && !answer(w, req, body) {
		return
	}
	if req.Method == http.MethodOptions {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if code := r.store(req, body); code != http.StatusOK {
		w.WriteHeader(code)
		fmt.Fprintf(w, "no: %v", req.Header)
	}
}

// store takes a request as a whole or not at all.
func (r *receiver) store(req *http.Request, body []byte) int {
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return http.StatusBadRequest
		}
		if body, err = io.ReadAll(z); err != nil {
			return http.StatusBadRequest
		}
	}
	var bodies []json.RawMessage
	if body[0] != '[' {
		bodies = append(bodies, body)
	} else if err := json.Unmarshal(body, &bodies); err != nil {
		return http.StatusBadRequest
	}
	headers := map[string]string{}
	for name := range req.Header {
		headers[strings.ToLower(name)] = req.Header.Get(name)
	}
	var stored []sinktest.Stored
	for _, b := range bodies {
		var v struct{ ID string }
		if err := json.Unmarshal(b, &v); err != nil || r.poisoned[v.ID] {
			return http.StatusUnprocessableEntity
		}
		if r.failing[v.ID] {
			return http.StatusServiceUnavailable
		}
		attributes := sinktest.DecodeAttributes(headers)
		if attributes != nil && attributes["datacontenttype"] == "" { // one that is there is wrong, and shall show
			attributes["datacontenttype"] = headers["content-type"]
		}
		stored = append(stored, sinktest.Stored{
			DedupID: req.Header.Get("webhook-id"), Headers: headers, Attributes: attributes, Body: b,
		})
	}
	r.stored = append(r.stored, stored...)
	return http.StatusOK
}

// count is how many records are stored.
func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.stored)
}

// peer gives the suite its levers.
func (r *receiver) peer(config func() sinks.Config, secrets ...string) *sinktest.Peer {
	away := false
	return &sinktest.Peer{
		Config: config,
		Stored: func() []sinktest.Stored {
			r.mu.Lock()
			defer r.mu.Unlock()
			return append([]sinktest.Stored(nil), r.stored...)
		},
		Fail: func() { r.status(http.StatusServiceUnavailable) },
		FailRecord: func(record *sinks.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failing[record.ID] = true
		},
		Poison: func(record *sinks.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.poisoned[record.ID] = true
		},
		Hang: r.hang,
		Leave: func() {
			r.server.Close()
			away = true
		},
		Deny: func() { r.status(http.StatusUnauthorized) },
		Mend: func() {
			r.mend()
			if away {
				r.serve(listen(r.t, r.addr))
				away = false
			}
		},
		Secrets: secrets,
		Cannot:  map[sinktest.Ability]string{sinktest.Key: "HTTP has no place for a key; the format puts it into the body or a header"},
	}
}

// write puts content into a file of the test and returns its path.
func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	rewrite(t, path, content)
	return path
}

func rewrite(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
