package source

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// follower keeps watching a collection. It opens a watch, processes what that sends, and opens the next one at the position. Only without a
// position, or once the server refused it (410), is the whole state read before. client-go's Reflector would list again after many errors that
// lose no events.
type follower struct {
	*watcher

	// bookmarks is set once a watch has sent one.
	bookmarks bool
	// apart is set once an API server has answered 404 and another one serves the resource: from then on each request has a connection of its own.
	apart bool
	// at is the resource version that the last watch began behind, and refused one that the server refused inside the stream.
	at, refused string
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

// minWatchDuration is how long a watch without events must stay open to count as successful.
const minWatchDuration = time.Second

// run follows until ctx ends or the resource is gone.
func (l *follower) run(ctx context.Context) {
	ctx, l.stop = context.WithCancel(ctx)
	defer l.stop()
	delay := l.options.Backoff.DelayFunc()
	for ctx.Err() == nil {
		if l.watchOnce(ctx) {
			delay = l.options.Backoff.DelayFunc()
			continue
		}
		select {
		case <-time.After(delay()):
		case <-ctx.Done():
		}
	}
}

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

// watchOnce opens a watch that goes on from the position, and processes what it sends until it ends. It returns false if the next one has to wait.
func (l *follower) watchOnce(ctx context.Context) bool {
	short := l.leaving.Load()
	seconds := 300 + rand.Int64N(300) // so that not all watches end at once
	if short {
		seconds = int64(endingTimeout.Seconds())
	}
	f, err := l.open(ctx, metav1.ListOptions{TimeoutSeconds: &seconds, AllowWatchBookmarks: true})
	if apierrors.IsNotFound(err) {
		err = l.notFound(ctx, err)
	}
	if err != nil {
		if ctx.Err() == nil {
			l.health.failed(err)
		}
		return false
	}
	l.absence = absence{}
	l.mu.Lock()
	if l.cut = f.leave; l.leaving.Load() && !short || l.state.Gap != "" { // since then
		f.leave()
	}
	l.mu.Unlock()
	l.wakeSnapshots()
	timer := time.AfterFunc(minWatchDuration, l.confirm)
	before := l.position()
	received, err := l.follow(ctx, f)
	timer.Stop()
	if ctx.Err() != nil {
		return false
	}
	lasted := l.ended(f, received, err)
	// The last event comes again in each watch: if nothing else came, the next one would end as soon.
	return lasted || f.left.Load() || isDisconnect(err) && l.position() != before
}

// follow processes what an open watch sends, until it ends with an error.
func (l *follower) follow(ctx context.Context, f *frames) (received bool, err error) {
	defer f.Close()
	events := make(chan event) // one is decoded while another is being processed
	go func() {
		defer close(events)
		for {
			var e event
			if e, err = f.next(); err != nil {
				return
			}
			events <- e
		}
	}()
	for e := range events { // when ctx ends, the request ends, and closes it
		if received = true; ctx.Err() == nil {
			l.confirm()
			_ = l.process(ctx, e) // an error means that ctx has ended
		}
	}
	return received, err
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

// ended handles the end of a watch, and reports whether it had lasted. The API server ends every watch after its time-out, so an end alone is no
// failure.
func (l *follower) ended(f *frames, received bool, err error) (lasted bool) {
	lasted = time.Since(f.opened) >= minWatchDuration
	empty := !received && !lasted
	switch {
	case f.left.Load():
	case isRefusal(err): // behind events, the next opening shows what it refuses
		if l.refused = l.at; l.at == l.position() {
			l.refuse(err)
		}
	case !isDisconnect(err):
		l.health.failed(err)
	case empty && l.lastWatchEmpty:
		l.health.failed(errEmpty)
	}
	l.bookmarks, l.lastWatchEmpty = f.bookmarks, empty
	return lasted
}
