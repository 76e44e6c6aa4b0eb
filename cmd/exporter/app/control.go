package app

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
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
	// logsPath deletes, with DELETE, the log of the pipeline that the request names, and returns how many changes were in it.
	logsPath = "/logs"
	// statePath returns a [StateSummary].
	statePath = "/state"
	// maxReads is how many answers with dead letters are in memory at once.
	maxReads = 2
	// readTimeout is how long a client may take to read an answer.
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
	serving sync.WaitGroup
	logger  *slog.Logger
}

// serveControl serves what the commands need.
func serveControl(ctx context.Context, stateDir string, t *tracer, committer *checkpoint.Committer, logger *slog.Logger) *control {
	mux := http.NewServeMux()
	c := &control{run: rand.Text(), server: admin.NewHTTPServer(mux, logger), logger: logger}
	own := &ownStateDir{committer: committer, dead: t.dead, pipelines: t.pipelines, running: true}
	reads := make(chan struct{}, maxReads) // has a value for each answer with dead letters
	demand := &snapshots{sources: t.sources, resolve: t.resolve}
	for pattern, answer := range map[string]func(r *http.Request) (any, error){
		"GET " + deadLettersPath: func(r *http.Request) (any, error) {
			from, err := strconv.ParseUint(r.FormValue("from"), 10, 64)
			if err != nil {
				return nil, err
			}
			select {
			case reads <- struct{}{}:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
			context.AfterFunc(r.Context(), func() { <-reads }) // once the answer is sent
			return own.DeadLetters(r.Context(), from)
		},
		"DELETE " + deadLettersPath: func(r *http.Request) (any, error) { return nil, c.removeDeadLetters(r, own) },
		"DELETE " + logsPath:        func(r *http.Request) (any, error) { return own.DropLog(r.Context(), r.FormValue("pipeline")) },
		"GET " + statePath:          func(r *http.Request) (any, error) { return own.Summary(r.Context()) },
		"GET " + snapshotsPath:      demand.answer,
		"POST " + snapshotsPath:     demand.answer,
		"GET " + tracePath:          t.answer,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { c.send(w, r, answer) })
	}
	c.listen(ctx, stateDir)
	return c
}

// send sends an answer as JSON, or why there is none.
func (c *control) send(w http.ResponseWriter, r *http.Request, answer func(r *http.Request) (any, error)) {
	found, err := answer(r)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTimeout)) // from now on: the answer may have waited for a commit
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.Header().Set(runHeader, c.run)
	_ = json.NewEncoder(w).Encode(found) // the client went away
}

func (c *control) removeDeadLetters(r *http.Request, own *ownStateDir) error {
	if r.Header.Get(runHeader) != c.run {
		return errors.New("kubeferry was restarted meanwhile: no dead letter is removed")
	}
	var seqs []uint64
	if err := json.NewDecoder(io.LimitReader(r.Body, maxRequest)).Decode(&seqs); err != nil {
		return err
	}
	return own.RemoveDeadLetters(r.Context(), seqs)
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
