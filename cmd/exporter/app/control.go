package app

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
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
	// maxReads is how many answers with dead letters are in memory at once. A client may take readTimeout for one.
	maxReads    = 2
	readTimeout = 5 * time.Second
	// maxRequest bounds the body of a request, which has the numbers of the dead letters of a chunk.
	maxRequest = 1 << 20
	// runHeader names the process that numbered the dead letters: another may have begun with a new state, and at 0.
	runHeader = "Kubeferry-Run"
)

// control serves the socket. Connections, time and memory have bounds, so that a client can delay other clients, and no pipeline.
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
