package source

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// follower keeps watching a collection across errors. It is the ListerWatcher of a client-go Reflector, which opens watches,
// reopens them, and backs off. A Reflector lists again after many errors that lose no events; so list returns an empty list, and
// the next watch resumes from the follower's own position. Only without a position, or once the server refused it (410), is the
// whole state read before.
//
// The reflector calls it from one goroutine at a time (list from one of its own), so that a pipeline that
// blocks holds the watch back.
type follower struct {
	*watcher

	// bookmarks is set once a watch has sent one.
	bookmarks bool
	// apart is set once an API server has answered 404 and another one serves the resource: from then on each request has a connection of its own.
	apart bool
	// at is the resource version that the last watch began behind, and refused one that the server refused inside the stream.
	at, refused string
	// received is set once the open watch has sent an event.
	received bool
	// lastWatchEmpty is set if the last watch ended at once without an event. The next one counts as open only when it
	// sends an event, or lasts.
	lastWatchEmpty bool
	// confirm reports the open watch to health, once. Any goroutine may call it.
	confirm func()
	// stop ends run.
	stop context.CancelFunc
}

// errEmpty is reported when a watch has ended at once, and the one before it too.
var errEmpty = errors.New("the watch ends as soon as it is opened: what answers may not be an API server")

// minWatchDuration is how long a watch without events must stay open to count as successful. The Reflector, too, backs off after
// a shorter one.
const minWatchDuration = time.Second

// run follows until ctx ends or the resource is gone.
func (l *follower) run(ctx context.Context) {
	ctx, l.stop = context.WithCancel(ctx)
	defer l.stop()
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{ListWithContextFunc: l.list, WatchFuncWithContext: l.openWatch}, l)
	s := eventStore{forward: func(e event) error { return l.forward(ctx, e) }}
	cache.NewReflectorWithOptions(lw, nil, s, cache.ReflectorOptions{Backoff: &l.options.Backoff}).RunWithContext(ctx)
}

// IsWatchListSemanticsUnSupported keeps the reflector from watch-lists of its own, which it collects in memory.
func (*follower) IsWatchListSemanticsUnSupported() bool { return true }

// position is where the next watch goes on: the resource version of the last event that was processed, or of the last
// complete state; empty if there is none, or the server refused it.
func (l *follower) position() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Gap != "" {
		return ""
	}
	return l.state.Position
}

// from is the collection as the watch and its lists read it.
func (l *follower) from() *collection {
	c := l.collection
	if l.apart {
		c.client = c.client.onNewConnections()
	}
	return &c
}

// list returns an empty list. Its resource version means nothing, as openWatch has its own position, which must not be read here: the reflector
// does not wait for a list when it ends.
func (*follower) list(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "0"}}, nil
}

// openWatch opens a watch that goes on from the position, whatever resource version the options name: the
// reflector's is that of the last object, which means nothing inside a state.
func (l *follower) openWatch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	short := l.leaving.Load()
	if short {
		seconds := int64(endingTimeout.Seconds())
		options.TimeoutSeconds = &seconds
	}
	f, err := l.open(ctx, options)
	if apierrors.IsNotFound(err) {
		err = l.notFound(ctx, err)
	}
	if err != nil {
		if ctx.Err() == nil {
			l.health.failed(err)
		}
		return nil, err
	}
	l.received, l.absence = false, absence{}
	l.mu.Lock()
	if l.cut = f.leave; l.leaving.Load() && !short || l.state.Gap != "" { // since then
		f.leave()
	}
	l.mu.Unlock()
	l.wakeSnapshots()
	timer := time.AfterFunc(minWatchDuration, l.confirm)
	reporter := apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")
	return &endingWatch{
		Interface: watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), f, reporter),
		ended: func() {
			timer.Stop()
			if ctx.Err() == nil {
				l.ended(f)
			}
		},
	}, nil
}

// endingWatch calls ended, in the reflector's goroutine, when the reflector is done with the watch.
type endingWatch struct {
	watch.Interface
	ended func()
}

// Stop implements [watch.Interface].
func (w *endingWatch) Stop() {
	w.Interface.Stop()
	w.ended()
}

// notFound handles a 404. If discovery confirms that the resource does not exist, run ends.
func (l *follower) notFound(ctx context.Context, err error) error {
	_, discoveryErr := l.lookUp(ctx)
	l.apart = l.apart || discoveryErr == nil
	if isGone(discoveryErr) {
		_ = l.gone(ctx) // an error means that ctx has ended
		l.stop()
	}
	return cmp.Or(discoveryErr, err)
}

// opened reports to health that a watch was opened, to resume or to read the state. After an empty watch it waits for the first
// event or minWatchDuration.
func (l *follower) opened(resumed bool) {
	l.confirm = sync.OnceFunc(func() { l.health.opened(resumed) })
	if !l.lastWatchEmpty {
		l.confirm()
	}
}

// ended handles the end of a watch. The API server ends every watch after its time-out, so an end alone is no failure.
func (l *follower) ended(f *frames) {
	l.bookmarks = f.bookmarks
	empty := !l.received && time.Since(f.opened) < minWatchDuration
	switch err := f.err; {
	case err == nil:
	case isRefusal(err) && l.position() != "" && l.at == l.state.Resume:
		if l.refused = l.at; l.at == l.state.Position {
			l.refuse(err)
		}
	case isRefusal(err) && l.position() != "" && l.at == l.state.Position:
		l.refuse(err)
	case isRefusal(err): // behind events; the next opening shows what it refuses
	case !isDisconnect(err):
		l.health.failed(err)
	case empty && l.lastWatchEmpty:
		l.health.failed(errEmpty)
	}
	l.lastWatchEmpty = empty
}
