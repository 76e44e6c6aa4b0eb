package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// receiver takes webhooks and hardly looks at them. It runs in this process, whose CPU time is not counted.
type receiver struct {
	server *http.Server
	url    string
	done   sync.WaitGroup
	bodies sync.Pool

	mu      sync.Mutex // guards what follows
	form    form
	target  int64
	reached chan struct{} // closed once target records are there
	tally   tally
	// stamps are the first arrivals by resource version, if they are wanted.
	stamps map[uint64]time.Time
}

// tally is what a receiver has got.
type tally struct {
	records, bytes int64
	first, last    time.Time
}

// form is the kind of content of a body.
type form struct {
	// record is a text that each record holds exactly once.
	record []byte
	// version is what stands before a record's resource version.
	version []byte
}

// The forms of bodies: what floor sends is the watch's frames, one per line; kubeferry sends CloudEvents.
var (
	frames      = form{record: []byte("\n"), version: []byte(`"resourceVersion":"`)}
	cloudEvents = form{record: []byte(`{"specversion":`), version: []byte(`"sequence":"`)}
)

func startReceiver() (*receiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // binding to loopback takes no time
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + listener.Addr().String(), reached: make(chan struct{})}
	r.bodies.New = func() any { return new(bytes.Buffer) }
	r.server = &http.Server{Handler: http.HandlerFunc(r.serve), ReadHeaderTimeout: 10 * time.Second}
	r.done.Go(func() { _ = r.server.Serve(listener) }) // until close
	return r, nil
}

func (r *receiver) close() {
	_ = r.server.Close()
	r.done.Wait()
}

// expect begins anew: bodies are of this form, and stamps are kept if wanted.
func (r *receiver) expect(f form, stamps bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.form, r.tally, r.stamps = f, tally{}, nil
	if stamps {
		r.stamps = map[uint64]time.Time{}
	}
}

func (r *receiver) serve(w http.ResponseWriter, req *http.Request) {
	body := r.bodies.Get().(*bytes.Buffer)
	defer r.bodies.Put(body)
	body.Reset()
	if _, err := io.Copy(body, req.Body); err != nil {
		return
	}
	r.take(body.Bytes(), time.Now())
	w.WriteHeader(http.StatusOK)
}

func (r *receiver) take(body []byte, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &r.tally
	if t.records == 0 {
		t.first = now
	}
	t.last = now
	t.bytes += int64(len(body))
	t.records += int64(bytes.Count(body, r.form.record) - bytes.Count(body, []byte(`"dev.kubeferry.snapshot"`))) // marks are none
	if r.stamps != nil {
		r.stamp(body, now)
	}
	if r.target > 0 && t.records >= r.target {
		close(r.reached)
		r.target = 0
	}
}

// stamp notes when each record of body arrived; the caller holds r.mu.
func (r *receiver) stamp(body []byte, now time.Time) {
	for _, part := range bytes.SplitAfter(body, r.form.record) {
		version, ok := versionIn(part, r.form.version)
		if !ok {
			continue
		}
		if _, seen := r.stamps[version]; !seen {
			r.stamps[version] = now
		}
	}
}

// versionIn finds the first number behind the marker.
func versionIn(text, marker []byte) (uint64, bool) {
	_, rest, ok := bytes.Cut(text, marker)
	if !ok {
		return 0, false
	}
	digits, _, _ := bytes.Cut(rest[:min(len(rest), 32)], []byte(`"`))
	version, err := strconv.ParseUint(string(digits), 10, 64)
	return version, err == nil
}

// wait returns when n records have arrived since expect.
func (r *receiver) wait(ctx context.Context, n int64, ended <-chan struct{}) (tally, error) {
	r.mu.Lock()
	reached := make(chan struct{})
	if r.tally.records >= n {
		close(reached)
	} else {
		r.target, r.reached = n, reached
	}
	r.mu.Unlock()
	var err error
	select {
	case <-reached:
	case <-ended:
		err = fmt.Errorf("it ended after %d of %d records", r.now().records, n)
	case <-ctx.Done():
		err = fmt.Errorf("%w: %d of %d records arrived", ctx.Err(), r.now().records, n)
	}
	return r.now(), err
}

func (r *receiver) now() tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tally
}

// arrivals returns the stamps so far.
func (r *receiver) arrivals() map[uint64]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamps := r.stamps
	r.stamps = nil
	return stamps
}
