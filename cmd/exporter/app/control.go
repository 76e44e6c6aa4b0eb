package app

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/admin"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
)

// A running kubeferry owns its state directory. What a command needs of it goes through a socket in that directory, which only
// the owner of the process may open.

const (
	socketName = "kubeferry.sock"
	// deadLettersPath reads dead letters from the number `from` on, and with DELETE removes those whose numbers are in the body.
	deadLettersPath = "/deadletters"
	// deadLetterChunk is how much is read at once.
	deadLetterChunk = 1 << 20
	// maxReads is how many answers with dead letters are in memory at once, and readTimeout is how long a client may take for one.
	maxReads    = 2
	readTimeout = 5 * time.Second
	// maxRequest bounds the body of a request, which has the numbers of the dead letters of a chunk.
	maxRequest = 1 << 20
	// runHeader names the process that numbered the dead letters: another may have begun with a new state, and at 0.
	runHeader = "Kubeferry-Run"
)

// control serves the socket. Its clients hold up each other at most: connections, time and memory have bounds.
type control struct {
	run     string // random
	server  *http.Server
	dead    *checkpoint.DeadLetters
	reads   chan struct{} // has a value for each answer with dead letters
	serving sync.WaitGroup
	logger  *slog.Logger
}

// serveControl serves what the commands need.
func serveControl(ctx context.Context, stateDir string, t *tracer, committer *checkpoint.Committer, logger *slog.Logger) *control {
	mux := http.NewServeMux()
	c := &control{run: rand.Text(), server: admin.NewHTTPServer(mux, logger), dead: t.dead, reads: make(chan struct{}, maxReads), logger: logger}
	mux.HandleFunc("GET "+deadLettersPath, c.readDeadLetters)
	mux.HandleFunc("DELETE "+deadLettersPath, c.removeDeadLetters)
	demand := &snapshots{sources: t.sources, resolve: t.resolve}
	mux.HandleFunc("GET "+snapshotsPath, demand.serve)
	mux.HandleFunc("POST "+snapshotsPath, demand.serve)
	mux.HandleFunc("GET "+tracePath, t.serve)
	mux.Handle("DELETE "+logsPath, &logs{committer, t.pipelines})
	mux.Handle("GET "+statePath, &summary{committer, t.dead})
	c.listen(ctx, stateDir)
	return c
}

// listen begins to serve. Where the file system has no sockets, kubeferry runs without.
func (c *control) listen(ctx context.Context, stateDir string) {
	path := filepath.Join(stateDir, socketName)
	_ = os.Remove(path) // of a process that was killed: the state directory is locked, so no other one serves it
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		c.logger.Warn("no socket in the state directory: `kubeferry replay` and `kubeferry state` work only while kubeferry is stopped, and `kubeferry snapshot` and `kubeferry trace` do not", "err", err)
		return
	}
	c.serving.Go(func() {
		if err := c.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			c.logger.Warn("the socket in the state directory failed", "err", err)
		}
	})
}

func (c *control) close(ctx context.Context) {
	if err := c.server.Shutdown(ctx); err != nil {
		c.logger.Warn("close the socket in the state directory", "err", err)
		_ = c.server.Close()
	}
	c.serving.Wait()
}

func (c *control) readDeadLetters(w http.ResponseWriter, r *http.Request) {
	select {
	case c.reads <- struct{}{}:
		defer func() { <-c.reads }()
	case <-r.Context().Done():
		return
	}
	from, err := strconv.ParseUint(r.URL.Query().Get("from"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	letters, err := c.dead.Read(r.Context(), from, deadLetterChunk)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set(runHeader, c.run)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTimeout))
	_ = json.NewEncoder(w).Encode(letters) // the client went away
}

func (c *control) removeDeadLetters(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(runHeader) != c.run {
		http.Error(w, "kubeferry was restarted meanwhile: no dead letter is removed", http.StatusConflict)
		return
	}
	var seqs []uint64
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&seqs)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	err = c.dead.Remove(r.Context(), seqs)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTimeout)) // a commit may take long
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// DeadLetterStore is the dead letters of a state directory.
type DeadLetterStore interface {
	// Read returns some dead letters from a number on, in order; none at their end.
	Read(ctx context.Context, from uint64) ([]checkpoint.DeadLetter, error)
	Remove(ctx context.Context, seqs []uint64) error
	Close() error
}

// OpenDeadLetters opens the dead letters of a state directory: those of the kubeferry that runs on it, or the file.
func OpenDeadLetters(ctx context.Context, stateDir string, report func(message string, err error)) (DeadLetterStore, error) {
	running := newRunning(stateDir)
	if connection, err := running.dial(ctx, "", ""); err == nil {
		return &runningLetters{running}, connection.Close()
	}
	if _, err := os.Stat(stateDir); err != nil { // it is not made for nothing
		return nil, err
	}
	store, err := checkpoint.Open(stateDir, report)
	if err != nil {
		return nil, err
	}
	return &storedLetters{store}, nil
}

// storedLetters are those of a directory that no kubeferry runs on.
type storedLetters struct{ *checkpoint.Store }

func (l *storedLetters) Read(_ context.Context, from uint64) ([]checkpoint.DeadLetter, error) {
	return l.ReadDeadLetters(from, deadLetterChunk)
}

func (l *storedLetters) Remove(_ context.Context, seqs []uint64) error {
	return l.Commit(&checkpoint.Commit{DeadLetters: checkpoint.DeadLetterChange{Remove: seqs}})
}

// runningLetters are those of a running kubeferry.
type runningLetters struct{ *running }

func (l *runningLetters) Read(ctx context.Context, from uint64) (letters []checkpoint.DeadLetter, err error) {
	answer, err := l.request(ctx, http.MethodGet, deadLettersPath+"?from="+strconv.FormatUint(from, 10), nil)
	if err != nil {
		return nil, err
	}
	return letters, json.Unmarshal(answer, &letters)
}

func (l *runningLetters) Remove(ctx context.Context, seqs []uint64) error {
	body, err := json.Marshal(seqs)
	if err != nil {
		return err
	}
	_, err = l.request(ctx, http.MethodDelete, deadLettersPath, body)
	return err
}

func (l *runningLetters) Close() error {
	l.client.CloseIdleConnections()
	return nil
}

// running is the kubeferry that runs on a state directory, by its socket.
type running struct {
	path   string
	client http.Client
	run    string // that returned the last answer
}

func newRunning(stateDir string) *running {
	r := &running{path: filepath.Join(stateDir, socketName)}
	r.client.Transport = &http.Transport{DialContext: r.dial}
	return r
}

func (r *running) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", r.path)
}

// request returns the body of the response; another status than 200 is an error.
func (r *running) request(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://kubeferry"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set(runHeader, r.run)
	response, err := r.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	r.run = cmp.Or(response.Header.Get(runHeader), r.run)
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("the running kubeferry returned %s: %s", response.Status, bytes.TrimSpace(content))
	}
	return content, err
}
