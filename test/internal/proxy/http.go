package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// HTTP forwards requests to an API server with the credentials of its own configuration, so that
// each watch has a connection of its own and a fault hits no other. Its methods may be called from any goroutine.
type HTTP struct {
	server    *httptest.Server
	authority []byte // that its certificate is of, as PEM; nil without TLS

	mu       sync.Mutex // guards what follows
	rule     Rule
	requests []*Request
	swallow  map[string]bool // addresses of connections that let nothing through
}

// Rule decides on the fault of a request; nil is none. Calls do not overlap. It may change nothing of r.
type Rule func(r *http.Request) *Fault

// Fault is what happens to a request. At most one of Status, Code, Reset, Cut and Instead is set.
type Fault struct {
	// Status is answered as the API server would, Code and Body as something before it would.
	Status *metav1.Status
	Code   int
	Body   string
	// Reset resets the connection.
	Reset bool
	// Wait is how long to wait before.
	Wait time.Duration
	// Hold, if not nil, is waited for before the request is forwarded, or the fault happens.
	Hold <-chan struct{}
	// After is the number of lines of the answer's body that pass before Cut or Instead. Only a watch has lines.
	After int
	// Cut breaks the connection in the middle of the next line.
	Cut bool
	// Instead is a line that takes the place of the next one, and ends the body.
	Instead string
	// Swallow keeps the connection open behind Instead, and lets nothing through any more, whatever the request.
	Swallow bool
}

// Request is one request that came.
type Request struct {
	Method, Path string
	Query        url.Values
	Accept       string
	Time         time.Time
	// Forwarded is set if it reached the API server. Status is that of the answer to kubeferry; 0 if there was none.
	Forwarded bool
	Status    int
}

// NewHTTP forwards to the API server of config until the test ends. It speaks HTTP/1.1 without TLS.
func NewHTTP(tb testing.TB, config *rest.Config) *HTTP {
	tb.Helper()
	p := newHTTP(tb, config)
	p.server.Start()
	return p
}

// NewHTTP2 is NewHTTP with TLS and HTTP/2, as API servers have it: it answers pings whatever the fault is. It has no Reset.
func NewHTTP2(tb testing.TB, config *rest.Config) *HTTP {
	tb.Helper()
	p := newHTTP(tb, config)
	p.server.EnableHTTP2 = true
	p.server.StartTLS()
	p.authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	return p
}

func newHTTP(tb testing.TB, config *rest.Config) *HTTP {
	tb.Helper()
	target, err := url.Parse(config.Host)
	if err != nil {
		tb.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		tb.Fatal(err)
	}
	p := &HTTP{swallow: map[string]bool{}}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // a watch is read line by line
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler) // the server is away, or kubeferry went
		},
		ModifyResponse: func(resp *http.Response) error {
			state, _ := resp.Request.Context().Value(stateKey{}).(*state)
			p.answered(state.request, resp.StatusCode)
			if f := state.fault; f != nil && (f.Cut || f.Instead != "") {
				resp.Body = &faultyBody{ReadCloser: resp.Body, fault: f, left: f.After, swallow: func() error { return p.swallowed(resp.Request, true) }}
			}
			body := resp.Body
			resp.Body = struct {
				io.Reader
				io.Closer
			}{readerFunc(func(b []byte) (int, error) {
				n, err := body.Read(b)
				return n, cmp.Or(p.swallowed(resp.Request, false), err)
			}), body}
			return nil
		},
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, forward) }))
	tb.Cleanup(func() {
		p.server.CloseClientConnections()
		p.server.Close()
	})
	return p
}

// Config leads a client here.
func (p *HTTP) Config() *rest.Config {
	return &rest.Config{Host: p.server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: p.authority}}
}

// Use sets the rule for requests from now on; nil forwards all of them.
func (p *HTTP) Use(rule Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// Cut breaks the connections there are.
func (p *HTTP) Cut() { p.server.CloseClientConnections() }

// Requests are those that came so far, in order.
func (p *HTTP) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	requests := make([]Request, len(p.requests))
	for i, r := range p.requests {
		requests[i] = *r
	}
	return requests
}

type stateKey struct{}

// state goes with a request that is forwarded.
type state struct {
	request *Request
	fault   *Fault
}

func (p *HTTP) serve(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	request := &Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.Query(), Accept: r.Header.Get("Accept"), Time: time.Now()}
	p.mu.Lock()
	var fault *Fault
	if p.rule != nil {
		fault = p.rule(r)
	}
	p.requests = append(p.requests, request)
	p.mu.Unlock()
	if p.swallowed(r, false) != nil {
		return
	}

	if fault != nil {
		if !wait(r, fault) {
			return
		}
		switch {
		case fault.Reset:
			reset(w)
			return
		case fault.Status != nil:
			p.answered(request, int(fault.Status.Code))
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(fault.Status.Code))
			_ = json.NewEncoder(w).Encode(fault.Status)
			return
		case fault.Code != 0:
			p.answered(request, fault.Code)
			http.Error(w, fault.Body, fault.Code)
			return
		}
	}
	p.mu.Lock()
	request.Forwarded = true
	p.mu.Unlock()
	forward.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), stateKey{}, &state{request, fault})))
}

// swallowed returns an error once the request has been given up, if its connection lets nothing through; begin makes it so.
func (p *HTTP) swallowed(r *http.Request, begin bool) error {
	p.mu.Lock()
	if begin {
		p.swallow[r.RemoteAddr] = true
	}
	swallow := p.swallow[r.RemoteAddr]
	p.mu.Unlock()
	if !swallow {
		return nil
	}
	<-r.Context().Done()
	return errCut
}

func (p *HTTP) answered(r *Request, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Status = status
}

// wait is false if kubeferry gave the request up.
func wait(r *http.Request, f *Fault) bool {
	if f.Hold != nil {
		select {
		case <-f.Hold:
		case <-r.Context().Done():
			return false
		}
	}
	if f.Wait > 0 {
		select {
		case <-time.After(f.Wait):
		case <-r.Context().Done():
			return false
		}
	}
	return true
}

// reset ends the connection with a TCP RST.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

var errCut = errors.New("cut in the middle of a line")

// faultyBody ends at the place of the fault. The reverse proxy breaks the connection at an error.
type faultyBody struct {
	io.ReadCloser
	fault   *Fault
	left    int       // lines that may pass
	rest    io.Reader // what comes then
	swallow func() error
}

func (b *faultyBody) Read(p []byte) (int, error) {
	if b.rest != nil {
		return b.rest.Read(p)
	}
	n, err := b.ReadCloser.Read(p)
	at := 0
	for ; at < n && b.left > 0; b.left-- {
		newline := bytes.IndexByte(p[at:n], '\n')
		if newline < 0 {
			return n, err
		}
		at += newline + 1
	}
	switch {
	case at == n: // the next line has not begun
		return n, err
	case b.fault.Instead != "":
		b.rest = strings.NewReader(b.fault.Instead + "\n")
		if b.fault.Swallow {
			b.rest = io.MultiReader(b.rest, readerFunc(func([]byte) (int, error) { return 0, b.swallow() }))
		}
		return at, nil
	default:
		line := n - at
		if newline := bytes.IndexByte(p[at:n], '\n'); newline >= 0 {
			line = newline
		}
		b.rest = iotest.ErrReader(errCut)
		return at + max(1, line/2), nil
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
