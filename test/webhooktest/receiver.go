// Package webhooktest receives webhooks over real HTTP, remembers them, misbehaves on request, and checks at the end that each is one that
// docs/schema describes.
package webhooktest

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
)

// Request is one request as it was received.
type Request struct {
	Method  string
	Path    string
	Header  http.Header
	Body    []byte // decompressed
	Records []Record
	Time    time.Time
	// Status is what was answered; 0 if the request got no answer.
	Status int
	// Ended is when it was answered, or the sender gave up; zero while it is under way.
	Ended time.Time

	hidden bool // there are only marks in it
	broken bool // its body did not arrive
}

// Receiver is an HTTP server on loopback. Its methods may be called from any goroutine.
type Receiver struct {
	server  *httptest.Server
	closing chan struct{} // closed at the end, to release requests that hang

	mu       sync.Mutex // guards what follows
	behavior Behavior
	requests []*Request
	all      []*Request // with the hidden ones
	marks    []Record
	changed  chan struct{} // closed and replaced with every request
}

// Start runs a receiver that ends with the test. It accepts everything until [Receiver.Use] changes that.
func Start(tb testing.TB) *Receiver {
	tb.Helper()
	return start(tb, (*httptest.Server).Start)
}

// StartTLS is [Start] with HTTPS; see [Receiver.Server] for its certificate.
func StartTLS(tb testing.TB) *Receiver {
	tb.Helper()
	return start(tb, (*httptest.Server).StartTLS)
}

func start(tb testing.TB, run func(*httptest.Server)) *Receiver {
	r := &Receiver{closing: make(chan struct{}), changed: make(chan struct{}), behavior: Accept()}
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	run(r.server)
	tb.Cleanup(func() {
		close(r.closing)
		r.server.CloseClientConnections()
		r.server.Close()
		r.check(tb)
	})
	return r
}

// check checks all requests but those that try the connection. That is at the end: it must not slow down what the test watches.
func (r *Receiver) check(tb testing.TB) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, req := range r.all {
		if req.broken || req.Method == http.MethodOptions || tooDeep(req.Body) {
			continue
		}
		asyncapi.Expect(tb, "webhook", req.Message())
	}
}

// tooDeep reports whether a body is nested more deeply than encoding/json reads, and so any check of it.
func tooDeep(body []byte) bool {
	var content json.RawMessage
	err := json.Unmarshal(body, &content)
	return err != nil && strings.Contains(err.Error(), "exceeded max depth")
}

// Message is what docs/schema describes of the request.
func (r *Request) Message() asyncapi.Message {
	m := asyncapi.Message{Headers: map[string]string{}, Body: r.Body}
	for name := range r.Header {
		m.Headers[strings.ToLower(name)] = r.Header.Get(name)
	}
	return m
}

// URL is where to send to; any path below it does.
func (r *Receiver) URL() string { return r.server.URL }

// Server is the HTTP server underneath, for its client and certificate.
func (r *Receiver) Server() *httptest.Server { return r.server }

// Use sets how requests from now on are answered.
func (r *Receiver) Use(b Behavior) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behavior = b
}

// Requests returns all requests received so far, in order, those that hang or were refused too.
func (r *Receiver) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests := make([]Request, len(r.requests))
	for i, req := range r.requests {
		requests[i] = *req
	}
	return requests
}

// All returns all requests received so far, those with nothing but marks of snapshots too.
func (r *Receiver) All() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Request, len(r.all))
	for i, req := range r.all {
		all[i] = *req
	}
	return all
}

// Accepted returns the records of all requests that were answered with a 2xx status, in order.
func (r *Receiver) Accepted() []Record {
	var records []Record
	for _, req := range r.Requests() {
		if req.Status/100 == 2 {
			records = append(records, req.Records...)
		}
	}
	return records
}

// Marks returns the accepted records that stand around snapshots. No other method returns them.
func (r *Receiver) Marks() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.marks)
}

// Changed is closed with the next request. Take it before looking at the requests, then nothing is missed.
func (r *Receiver) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *Receiver) serve(w http.ResponseWriter, hr *http.Request) {
	req := &Request{Method: hr.Method, Path: hr.URL.Path, Header: hr.Header.Clone(), Time: time.Now()}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		req.Ended = time.Now()
	}()
	body, err := readBody(hr)
	if err != nil { // the sender hung up, or sent no gzip
		http.Error(w, err.Error(), http.StatusBadRequest)
		req.Status, req.broken = http.StatusBadRequest, true
		r.remember(req)
		return
	}
	req.Body = body
	var marks []Record
	req.Records, marks = split(req.Header, body)
	req.hidden = len(req.Records) == 0 && len(marks) > 0

	r.mu.Lock()
	answer := r.behavior(req)
	r.mu.Unlock()

	if !r.last(hr, answer) {
		answer = Answer{Hang: true}
	}
	switch {
	case answer.Hang:
		r.remember(req)
		select {
		case <-hr.Context().Done():
		case <-r.closing:
		}
		panic(http.ErrAbortHandler) // ends the connection without an answer
	case answer.Reset:
		r.remember(req)
		reset(w)
	case answer.CloseAfter > 0:
		r.remember(req)
		select {
		case <-time.After(answer.CloseAfter):
		case <-hr.Context().Done():
		case <-r.closing:
		}
		panic(http.ErrAbortHandler)
	default:
		req.Status = answer.Status
		if answer.Status/100 == 2 {
			r.mu.Lock()
			r.marks = append(r.marks, marks...)
			r.mu.Unlock()
		}
		// Before it is sent: whoever got the answer finds the request here.
		r.remember(req)
		if answer.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(answer.RetryAfter.Seconds())))
		} else if !answer.RetryAt.IsZero() {
			w.Header().Set("Retry-After", answer.RetryAt.UTC().Format(http.TimeFormat))
		}
		w.WriteHeader(answer.Status)
		_, _ = io.WriteString(w, answer.Body)
	}
}

// last returns when it is time for the answer, or false as soon as the sender gives up.
func (r *Receiver) last(hr *http.Request, a Answer) bool {
	held := a.Held
	if held == nil {
		if a.After == 0 {
			return true
		}
		due := make(chan struct{})
		defer time.AfterFunc(a.After, func() { close(due) }).Stop()
		held = due
	}
	select {
	case <-held:
		return true
	case <-hr.Context().Done():
	case <-r.closing:
	}
	return false
}

func (r *Receiver) remember(req *Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, req)
	if !req.hidden {
		r.requests = append(r.requests, req)
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

func readBody(hr *http.Request) ([]byte, error) {
	if hr.Header.Get("Content-Encoding") != "gzip" {
		return io.ReadAll(hr.Body)
	}
	z, err := gzip.NewReader(hr.Body)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// reset ends the connection with a TCP RST, as a dying server or a proxy would.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil { // HTTP/2
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
