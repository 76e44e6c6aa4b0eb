package stdout

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// piped is a Config whose standard output is a pipe of the test.
type piped struct {
	*Config
	out *os.File
}

func (p piped) Open(context.Context, sinks.Env) (sinks.Sink, error) { return newSink(p.out), nil }

// reader reads the other end of the pipe.
type reader struct {
	t       *testing.T
	in, out *os.File
	done    chan struct{}
	hangs   bool
	stopped chan struct{}
	resume  chan struct{}

	mu     sync.Mutex // guards stored
	stored []sinktest.Stored
}

// Lines that the tests write to the reader, beside what the sink writes.
const (
	mark = `"mark"`
	stop = `"stop"` // reading, until resume
)

func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{t: t, done: make(chan struct{}), stopped: make(chan struct{}), resume: make(chan struct{})}
	var err error
	if r.in, r.out, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	go r.read()
	t.Cleanup(func() {
		r.mend()
		_ = r.out.Close()
		<-r.done
		_ = r.in.Close()
	})
	return r
}

func (r *reader) read() {
	defer close(r.done)
	in := bufio.NewReader(r.in)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0:
		case string(line) == stop:
			r.stopped <- struct{}{}
			<-r.resume
		default:
			r.mu.Lock()
			r.stored = append(r.stored, sinktest.Stored{Body: line})
			r.mu.Unlock()
		}
	}
}

// lines waits until the reader has everything that was written, which ends with a line of this test's.
func (r *reader) lines() []sinktest.Stored {
	r.t.Helper()
	if _, err := r.out.WriteString(mark + "\n"); err != nil {
		r.t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		r.mu.Lock()
		stored := r.stored
		if n := len(stored) - 1; n >= 0 && string(stored[n].Body) == mark {
			r.stored = stored[:n]
			r.mu.Unlock()
			return stored[:n:n]
		}
		r.mu.Unlock()
	}
	r.t.Fatal("the pipe does not end")
	return nil
}

// hang stops the reader and fills the pipe, which a reader that is still on its way to its next line would empty again.
func (r *reader) hang() {
	r.t.Helper()
	if _, err := r.out.WriteString(stop + "\n"); err != nil {
		r.t.Fatal(err)
	}
	<-r.stopped
	r.hangs = true
	conn, err := r.out.SyscallConn()
	if err != nil {
		r.t.Fatal(err)
	}
	var full error
	err = conn.Write(func(fd uintptr) bool {
		for _, size := range []int{1 << 20, 1} { // the second fills what is left of the last page
			for full = nil; full == nil || errors.Is(full, syscall.EINTR); {
				_, full = syscall.Write(int(fd), bytes.Repeat([]byte("\n"), size))
			}
		}
		return true
	})
	if err != nil || !errors.Is(full, syscall.EAGAIN) {
		r.t.Fatal(err, full)
	}
}

func (r *reader) mend() {
	if r.hangs {
		r.hangs = false
		r.resume <- struct{}{}
	}
}

func TestSuite(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{Kind: Kind(), New: func(t *testing.T) *sinktest.Peer {
		r := newReader(t)
		const (
			bodiesOnly = "standard output holds the bodies only"
			noOpinion  = "a pipe does not look into records"
		)
		return &sinktest.Peer{
			Config: func() sinks.Config { return piped{NewConfig(), r.out} },
			Stored: r.lines,
			Hang:   r.hang,
			Mend:   r.mend,
			Cannot: map[sinktest.Ability]string{
				sinktest.Fail:       "a pipe that was closed cannot be opened again; see TestClosedPipe",
				sinktest.Leave:      "a pipe that was closed cannot be opened again; see TestClosedPipe",
				sinktest.FailRecord: noOpinion, sinktest.Poison: noOpinion, sinktest.Deny: noOpinion,
				sinktest.Credentials: "standard output has none",
				sinktest.DedupID:     bodiesOnly, sinktest.Key: bodiesOnly, sinktest.Headers: bodiesOnly,
				sinktest.Attributes: "they go into the body; see TestBinaryEvents",
			},
		}
	}})
}

func TestClosedPipe(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	err = newSink(out).Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", 1)})
	class := sinks.Classify(err)
	if class == nil || class.Permanent || class.Reason != sinks.ReasonUnreachable || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got %v, want a transient %s", err, sinks.ReasonUnreachable)
	}
}

// shortWriter takes a few bytes of its first write.
type shortWriter struct {
	bytes.Buffer
	failed bool
}

func (w *shortWriter) Write(p []byte) (int, error) {
	if !w.failed {
		w.failed = true
		_, _ = w.Buffer.Write(p[:3])
		return 3, errors.New("no space left")
	}
	return w.Buffer.Write(p)
}

// TestBinaryEvents checks that the attributes of an event are not lost where there are no headers.
func TestBinaryEvents(t *testing.T) {
	var out bytes.Buffer
	event := sinks.Record{
		ContentType: "application/json", Body: []byte(`{"a":1}`),
		Attributes: map[string]string{"specversion": "1.0", "id": "1"},
	}
	if err := newSink(&out).Deliver(t.Context(), []sinks.Record{event}); err != nil {
		t.Fatal(err)
	}
	want := `{"id":"1","specversion":"1.0","datacontenttype":"application/json","data":{"a":1}}` + "\n"
	if got := out.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTornLine(t *testing.T) {
	var out shortWriter
	sink := newSink(&out)
	batch := []sinks.Record{{Body: []byte(`{"a":1}`)}}
	if err := sink.Deliver(t.Context(), batch); err == nil {
		t.Error("got no error for a short write")
	}
	for range 2 {
		if err := sink.Deliver(t.Context(), batch); err != nil {
			t.Error(err)
		}
	}
	if got, want := out.String(), "{\"a\n{\"a\":1}\n{\"a\":1}\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
