package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// resolveInterval is how often discovery is read for a resource that does not exist: one small request.
const resolveInterval = 3 * time.Second

// watcher is the list/watch of one resource in one scope.
type watcher struct {
	id         string
	collection collection
	options    *Options
	handler    Handler
	health     *health
	seen       map[delta.Type]prometheus.Counter
	logger     *slog.Logger
	store      Store      // the state directory; nil without one
	siblings   func() int // how many watches its source has

	// mu is held while the process function compares and sends, and while a snapshot does. It is taken before the handler's
	// locks, and guards what follows.
	mu sync.Mutex
	// sending are the pipelines whose snapshots have a goroutine, and wake starts those that have none.
	sending PipelineSet
	wake    chan struct{}
	// moved is closed when the process function has done something; nil if nothing waits for that.
	moved chan struct{}
	// state is what a commit captures. It changes only in functions that the handler calls while no commit captures: those that are
	// passed to Update and Exclusive, and each record. Other comments name these the handler's calls.
	state *state
	// snapshotEnds are how the last snapshots ended, by pipeline. It changes only there, too.
	snapshotEnds map[int]SnapshotStatus
	// stop ends run, and stopped is closed when it has returned. leaving is set while the watch is not selected any more, and ending while a
	// goroutine is there to end it.
	stop            context.CancelFunc
	stopped         chan struct{}
	leaving, ending atomic.Bool
	// outdated is set for a watch of the last run that an edit ends. It opens no watch. elsewhere are the pipelines that another watch has
	// the resource for now.
	outdated  bool
	elsewhere PipelineSet
	suspect   chan struct{} // requests a check
	cut       func()        // ends the open watch

	// What follows is the process function's, but for at, which snapshots set too.
	absence absence
	at      time.Time  // when the event arrived that is being processed
	reading bool       // between begin and complete
	listed  uint64     // the resource version of the state that is being read
	lastGap *delta.Gap // the last record of the gap that is open, of this run
}

// watchBackoff grows to 8 s. client-go's grows to a minute, too long to wait once the API server is back.
func watchBackoff() wait.Backoff {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Steps: 10, Cap: 8 * time.Second, Jitter: 0.5}
}

// watchID returns the id of a watch, for gap records and the checkpoint. Selectors are not part of it: after an edit of them, or of globs and
// exclusions of namespaces, it is the same watch.
func watchID(source string, resource schema.GroupVersionResource, namespace string) string {
	sum := sha256.Sum256([]byte(source + "\x00" + delta.ResourceName(resource) + "\x00" + namespace))
	return hex.EncodeToString(sum[:6])
}

// run watches until ctx ends, waiting for the resource whenever it does not exist.
func (w *watcher) run(ctx context.Context) {
	if w.state.Gone { // the last run was killed meanwhile: the objects may be back
		_ = w.gone(ctx) // an error means that ctx has ended
	}
	backoff := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: 10, Cap: resolveInterval, Jitter: 0.2}
	for ctx.Err() == nil {
		_ = backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
			found, ok := w.resolve(ctx)
			if ok {
				w.observe(ctx, found)
			}
			return ok, nil
		})
	}
}

// resolve reads discovery, and reports whether the resource exists.
func (w *watcher) resolve(ctx context.Context) (resolved, bool) {
	found, err := w.lookUp(ctx)
	if err == nil {
		return found, true
	}
	if ctx.Err() == nil {
		w.health.failed(err)
	}
	if isGone(err) && w.knowsSomething() { // it went while no watch was open
		_ = w.gone(ctx) // an error means that ctx has ended
	}
	return resolved{}, false
}

// noteAbsent notes that the resource does not exist, if an error of discovery says so: without snapshots, what comes with it is new, also to
// the next run.
func (w *watcher) noteAbsent(err error) {
	if !isAbsent(err) || w.state.Absent {
		return
	}
	w.mu.Lock()
	defer w.unlock()
	w.handler.Update(func() { w.state.Absent, w.state.changed = true, true })
}

// observe follows the collection until ctx ends or the resource is gone.
func (w *watcher) observe(ctx context.Context, found resolved) {
	// Errors reach the log through health, once each; client-go would add lines of its own.
	ctx = klog.NewContext(ctx, logr.Discard())
	w.mu.Lock()
	w.handler.Update(func() { w.state.setKind(found.kind) })
	w.unlock()
	beside, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.checkRights(beside) })
	running.Go(func() { w.runSnapshots(beside) })
	running.Go(func() { w.runChecks(beside) })
	(&follower{watcher: w}).run(ctx)
	stop()
	running.Wait()
}

// await waits until the process function has made done true, which is called with mu held. An error means that ctx has ended.
func (w *watcher) await(ctx context.Context, done func() bool) error {
	for {
		w.mu.Lock()
		is := done()
		if !is && w.moved == nil {
			w.moved = make(chan struct{})
		}
		moved := w.moved
		w.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unlock ends what mu is held for.
func (w *watcher) unlock() {
	if w.moved != nil {
		close(w.moved)
		w.moved = nil
	}
	w.mu.Unlock()
}
