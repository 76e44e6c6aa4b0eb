package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/source"
)

// refusing refuses every record.
type refusing struct{}

func (refusing) Deliver(context.Context, []sinks.Record) error {
	return sinks.Permanent(sinks.ReasonTooLarge, errors.New("413"))
}

func (refusing) Close(context.Context) error { return nil }

// runningState is the state of a running program, with the pipeline p.
func runningState(t *testing.T, dir string, maxDead int64) (*state, *pipeline.Pipeline, *safeBuffer) {
	t.Helper()
	var log safeBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	store, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	committer := checkpoint.NewCommitter(store, logger)
	s := &state{
		store: store, committer: committer, dead: checkpoint.NewDeadLetters(store, committer, maxDead), logger: logger, offset: source.NoOffset(), stop: func() {},
	}
	options := pipeline.Options{
		Options:  shape.Options{Name: "p", Cluster: "c", Format: shape.FormatCloudEvents},
		MaxBytes: 1 << 20, DeadLetter: s.deadLetters(), Sink: refusing{}, SinkName: "out",
		Retry:  pipeline.Retry{Initial: time.Millisecond, Max: time.Millisecond},
		Limits: sinks.Limits{MaxRecords: 10, MaxBytes: 1 << 20, Concurrency: 1, Timeout: time.Second},
	}
	if err := s.setLog(&options, config.Backlog{Overflow: config.OverflowSpill, MaxDiskBytes: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	p := pipeline.New(options, pipeline.NewMetrics(prometheus.NewRegistry()), logger)
	if err := s.begin(nil, []*pipeline.Pipeline{p}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var delivering sync.WaitGroup
	delivering.Go(func() { p.Run(ctx) })
	socket := serveControl(ctx, dir, &tracer{dead: s.dead, pipelines: []*pipeline.Pipeline{p}}, committer, logger)
	t.Cleanup(func() {
		stop()
		delivering.Wait()
		socket.close(context.Background())
		s.close()
	})
	return s, p, &log
}

type safeBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// The numbers of dead letters that one process returned are none of another, whose state may be a new one.
func TestDeadLettersOfAnotherRun(t *testing.T) {
	dir := t.TempDir()
	logEntries(t, dir, 1)
	s, p, _ := runningState(t, dir, 1<<20)
	for deadline := time.Now().Add(20 * time.Second); p.Stats().Waiting > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no dead letter is written")
		}
	}
	letters := newSocketClient(dir)
	defer letters.close()
	read, err := letters.DeadLetters(t.Context(), 0)
	if err != nil || len(read) != 1 {
		t.Fatal(len(read), err)
	}
	other := serveControl(t.Context(), dir, &tracer{dead: s.dead}, nil, slog.New(slog.DiscardHandler)) // at the same path
	defer other.close(context.Background())
	letters.close()
	if err := letters.RemoveDeadLetters(t.Context(), []uint64{read[0].Seq}); err == nil || !strings.Contains(err.Error(), "restarted meanwhile") {
		t.Errorf("got %v", err)
	}
	if again, err := letters.DeadLetters(t.Context(), 0); err != nil || len(again) != 1 {
		t.Errorf("%d letters are left, %v", len(again), err)
	}
	if err := letters.RemoveDeadLetters(t.Context(), []uint64{read[0].Seq}); err != nil {
		t.Error(err)
	}
}

// Where dead letters have reached their bound, records wait, and are not lost. Removed through the socket of the running program,
// letters make room for them.
func TestDeadLettersUpToABound(t *testing.T) {
	dir := t.TempDir()
	logEntries(t, dir, 5)
	s, p, log := runningState(t, dir, 2500) // two letters
	waiting := func(n uint64) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); p.Stats().Waiting != n || s.dead.Status().Full != (n > 0); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("got %+v and %+v, want %d waiting", p.Stats().Counts, s.dead.Status(), n)
			}
		}
	}
	waiting(3)
	if n := strings.Count(log.String(), "cannot write a dead letter; the record waits"); n == 0 || !strings.Contains(log.String(), "deadLetters.maxBytes") {
		t.Errorf("the log has\n%s", log)
	}
	if info, err := os.Stat(filepath.Join(dir, socketName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info, err)
	}
	var ids []string
	letters := newSocketClient(dir)
	for from := uint64(0); len(ids) < 5; {
		read, err := letters.DeadLetters(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		var seqs []uint64
		for _, r := range read {
			letter, err := pipeline.DecodeLetter(r.Letter)
			if err != nil {
				t.Fatal(err)
			}
			ids, seqs, from = append(ids, letter.Record.ID), append(seqs, r.Seq), r.Seq+1
		}
		if len(seqs) > 0 {
			if err := letters.RemoveDeadLetters(t.Context(), seqs); err != nil {
				t.Fatal(err)
			}
		}
		letters.close() // each request opens a connection
		if len(ids) > 5 {
			t.Fatalf("got %q", ids)
		}
	}
	waiting(0)
	if stats := p.Stats(); stats.Restored != 5 || stats.Dead[string(sinks.ReasonTooLarge)] != 5 {
		t.Errorf("got %+v", stats.Counts)
	}
}

// Clients of the socket that send half a request, a request without an end, or do not read the answer, are given up, and hold up
// neither others for long nor the pipeline.
func TestHeldSocket(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, p, _ := runningState(t, dir, 64<<20)
	letter := fmt.Appendf(nil, "%q", strings.Repeat("x", 4<<20))
	for range 3 {
		if _, err := s.dead.Write(t.Context(), letter); err != nil {
			t.Fatal(err)
		}
	}
	send := func(request string) net.Conn {
		t.Helper()
		conn, err := newSocketClient(dir).dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	const end = " HTTP/1.1\r\nHost: x\r\n"
	first := send("GET /deadletters?from=0" + end)
	for range 100 {
		send("GET /deadletters?from=0" + end)
	}
	if err := first.SetReadDeadline(time.Now().Add(4 * time.Second)); err != nil { // before its request is given up
		t.Fatal(err)
	}
	if n, err := first.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest of too many connections is open: %d, %v", n, err)
	}
	var slow []net.Conn
	for range maxReads {
		slow = append(slow, send("GET /deadletters?from=0"+end+"\r\n"))
	}
	endless := send("DELETE /deadletters" + end + "Transfer-Encoding: chunked\r\n\r\n")
	ended := make(chan error, 1)
	go func() {
		numbers := strings.Repeat("1,", 1<<14)
		for written := 0; ; written += len(numbers) {
			if _, err := fmt.Fprintf(endless, "%x\r\n%s%s\r\n", len(numbers)+1-min(1, written), "["[min(1, written):], numbers); err != nil {
				ended <- err
				return
			}
			if written > 64<<20 {
				ended <- nil
				return
			}
		}
	}()
	if err := <-ended; err == nil {
		t.Error("a request of 64 MiB was read")
	}

	letters := newSocketClient(dir)
	defer letters.close()
	read, err := letters.DeadLetters(t.Context(), 0)
	if err != nil || len(read) != 1 || !bytes.Equal(read[0].Letter, letter) {
		t.Fatalf("%d letters, %v", len(read), err)
	}
	for _, conn := range slow {
		for deadline := time.Now().Add(20 * time.Second); err == nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("who reads nothing is not given up")
			}
			_, err = conn.Write([]byte{'x'})
		}
		err = nil
	}
	object, err := delta.NewObject([]byte(`{"metadata":{"name":"o","namespace":"ns","uid":"u","resourceVersion":"1"}}`))
	if err != nil {
		t.Fatal(err)
	}
	change := &delta.Delta{Type: delta.Added, Resource: schema.GroupVersionResource{Version: "v1", Resource: "things"}, Watch: "w", Object: object}
	ticket, err := p.Reserve(t.Context(), change, true)
	if err != nil {
		t.Fatal(err)
	}
	p.Take(ticket)
	for deadline := time.Now().Add(20 * time.Second); p.Stats().Dead[string(sinks.ReasonTooLarge)] != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the pipeline stands still: %+v", p.Stats().Counts)
		}
	}
}

// The state is shown of a directory that kubeferry runs on, and of one that it does not run on.
func TestSummarizeState(t *testing.T) {
	dir := t.TempDir()
	report := func(message string, err error) { t.Error(message, err) }
	store, err := checkpoint.Open(dir, report)
	if err != nil {
		t.Fatal(err)
	}
	object, err := delta.NewObject([]byte(`{"metadata":{"name":"a","uid":"u","resourceVersion":"1"}}`))
	if err != nil {
		t.Fatal(err)
	}
	entry := delta.Entry{Delta: &delta.Delta{Type: delta.Added, Object: object}}
	store.Bind("the uid")
	info := store.Info()
	if err := errors.Join(store.Commit(&checkpoint.Commit{Info: &info, Logs: []delta.LogChange{{Pipeline: "gone", Append: []delta.Entry{entry}}}}), store.Close()); err != nil {
		t.Fatal(err)
	}
	for _, running := range []bool{false, true} {
		if running {
			runningState(t, dir, 1<<20)
		}
		var got StateSummary
		err := WithStateDir(t.Context(), dir, report, func(state StateDir) (err error) {
			got, err = state.Summary(t.Context())
			return err
		})
		if err != nil {
			t.Fatalf("running %v: %v", running, err)
		}
		if got.ClusterUID != "the uid" || got.Running != running || got.Logs["gone"].Entries != 1 {
			t.Errorf("running %v: got %+v", running, got)
		}
	}
}

// The log of a pipeline that was removed is dropped while kubeferry runs, and that of one that runs is not. Standbys get it as a commit.
func TestDropLog(t *testing.T) {
	dir := t.TempDir()
	report := func(message string, err error) { t.Error(message, err) }
	store, err := checkpoint.Open(dir, report)
	if err != nil {
		t.Fatal(err)
	}
	object, err := delta.NewObject([]byte(`{"metadata":{"name":"a","uid":"u","resourceVersion":"1"}}`))
	if err != nil {
		t.Fatal(err)
	}
	entry := delta.Entry{Delta: &delta.Delta{Type: delta.Added, Object: object}}
	var both checkpoint.Commit
	for _, name := range []string{"p", "gone", "also"} {
		both.Logs = append(both.Logs, delta.LogChange{Pipeline: name, Append: []delta.Entry{entry}})
	}
	if err := errors.Join(store.Commit(&both), store.Close()); err != nil {
		t.Fatal(err)
	}
	drop := func(name string) (entries uint64, err error) {
		err = WithStateDir(t.Context(), dir, report, func(state StateDir) (err error) {
			entries, err = state.DropLog(t.Context(), name)
			return err
		})
		return entries, err
	}
	if n, err := drop("also"); n != 1 || err != nil {
		t.Errorf("without kubeferry: %d, %v", n, err)
	}
	s, _, _ := runningState(t, dir, 1<<20)
	if _, err := drop("p"); err == nil || !strings.Contains(err.Error(), `pipeline "p" runs`) {
		t.Errorf("of a pipeline that runs: %v", err)
	}
	if n, err := drop("gone"); n != 1 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := drop("gone"); err == nil || !strings.Contains(err.Error(), `no log of the pipeline "gone"`) {
		t.Errorf("once more: %v", err)
	}
	if logs := s.store.Logs(); len(logs) > 1 {
		t.Errorf("there are %v", logs)
	}
}
