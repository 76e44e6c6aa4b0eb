package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// follower reads a collection through every interruption: from a position on for every cause of one but a refusal (410),
// and otherwise with the whole state. It tells the process function what it reads, event by event, in its own goroutine,
// so that one that blocks holds the watch back.
//
// It takes the place of client-go's Reflector, whose lists are the very thing to avoid, and whose hand-over of each event
// to another goroutine costs more than the event (docs/performance.md).
type follower struct {
	collection collection
	// process takes an event. Its error means that the context has ended.
	process func(ctx context.Context, e event) error
	// exists asks discovery whether the resource exists; an error means that it could not be told.
	exists func(ctx context.Context) (bool, error)
	health *health
	logger *slog.Logger
	// backoff spaces the attempts to open the watch.
	backoff wait.Backoff

	// position is the resource version of the last event that was processed, or of the last complete state; empty when
	// there is none, or the server refused it.
	position string
	// refused is the refusal that the next complete state closes.
	refused *refusal
	// pagesOnly is set once the server turned a watch-list down.
	pagesOnly bool

	// restored says that the position is the last run's and has not been compared with the server's.
	restored bool
	// fill asks for the state at the position before the watch goes on.
	fill bool
	// begun is set between the notes begin and end.
	begun bool
	// ended says that the server ended the last watch in good order, and nothing has failed since.
	ended bool
	// lastWatchEmpty says that the last watch brought nothing and did not last. Then unconfirmed is what to do once the next one
	// is found to be better.
	lastWatchEmpty bool
	unconfirmed    func()
	onRollback     func(error)
	rolledBack     error // what onRollback was told
}

// errGone says that the resource does not exist any more, and that the process function knows.
var errGone = errors.New("the resource is gone")

// errEmpty is reported when a watch has ended at once, and the one before it too.
var errEmpty = errors.New("the watch ends as soon as it is opened: what answers may not be an API server")

// lasting is how long a watch must live to count as a good one if it brings nothing.
const lasting = time.Second

// precaution is how long the comparison of versions may hold up a watch that needs none. The API server's watch cache
// remembers little more than a minute.
const precaution = 5 * time.Second

// outcome is how a watch went that was opened.
type outcome struct {
	// brought says that it brought an event, lived that it lasted.
	brought, lived bool
}

// run follows until ctx ends or the resource is gone.
func (l *follower) run(ctx context.Context) {
	backoff := l.backoff
	for ctx.Err() == nil {
		was, err := l.follow(ctx)
		switch {
		case errors.Is(err, errGone):
			return
		case err != nil && ctx.Err() == nil:
			l.health.failed(err)
		}
		if was.brought || was.lived {
			backoff = l.backoff
		}
		if err == nil && (was.lived || was.brought && l.fill) {
			continue
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
		}
	}
}

// follow opens a watch and reads it to its end. That a watch just ends, as every one does in time, is no error.
func (l *follower) follow(ctx context.Context) (was outcome, err error) {
	ended := l.ended
	l.ended = false
	w, err := l.open(ctx)
	if apierrors.IsNotFound(err) {
		exists, discoveryErr := l.exists(ctx)
		if discoveryErr == nil && !exists {
			return was, cmp.Or(l.process(ctx, event{marker: goneMarker(l.refused, l.position, ended)}), errGone)
		}
		err = cmp.Or(discoveryErr, err)
	}
	if err != nil {
		return was, err
	}
	defer w.close()
	opened, confirm := time.Now(), l.confirm()
	timer := time.AfterFunc(lasting, confirm)
	defer timer.Stop()
	defer func() {
		was.lived = time.Since(opened) >= lasting
		l.lastWatchEmpty = !was.brought && !was.lived
	}()
	for {
		e, err := w.next()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return was, nil
		case isRefusal(err) && l.position != "":
			l.refuse(err)
			return was, nil
		case wasCut(err):
			if !was.brought && l.lastWatchEmpty && time.Since(opened) < lasting {
				return was, errEmpty
			}
			l.ended = errors.Is(err, io.EOF)
			return was, nil
		default:
			return was, err
		}
		confirm() // before the event, which may complete the state
		if err := l.forward(ctx, e); err != nil {
			return was, err
		}
		was.brought = true
		if l.fill && l.position != "" {
			return was, nil // the position has moved to where the state can be had
		}
	}
}

// opened takes note of a watch that was opened, to resume or to read the state. One that follows on another which brought
// nothing has to prove itself first: it is good once it brings something, or lasts.
func (l *follower) opened(resumed bool) {
	if l.lastWatchEmpty {
		l.unconfirmed = func() { l.health.opened(resumed) }
		return
	}
	l.health.opened(resumed)
}

// confirm is what to do once the watch is found to be good. It may be called again, from any goroutine.
func (l *follower) confirm() func() {
	unconfirmed := l.unconfirmed
	l.unconfirmed = nil
	if unconfirmed == nil {
		return func() {}
	}
	return sync.OnceFunc(unconfirmed)
}

// forward passes an event on and moves the position with it. Until a snapshot has ended there is no position, so that an
// interrupted one begins anew.
func (l *follower) forward(ctx context.Context, e event) error {
	moves := l.position != ""
	switch {
	case e.kind != watch.Bookmark:
	case bytes.Contains(e.object.JSON(), []byte(metav1.InitialEventsAnnotationKey)):
		moves = true
		e.marker = &marker{kind: end, resourceVersion: e.object.ResourceVersion()}
	case !moves:
		return nil // inside a snapshot it says nothing
	default:
		e.marker = &marker{kind: bookmark, resourceVersion: e.object.ResourceVersion()}
	}
	if err := l.process(ctx, e); err != nil {
		return err
	}
	if version := e.object.ResourceVersion(); moves && version != "" {
		l.position = version
	}
	return nil
}

// wasCut reports whether an error says no more than that a stream ended.
func wasCut(err error) bool {
	var read *readError
	return errors.As(err, &read) && (errors.Is(read.err, io.EOF) || errors.Is(read.err, io.ErrUnexpectedEOF) ||
		utilnet.IsProbableEOF(read.err) || utilnet.IsTimeout(read.err))
}

// open opens a watch where the next one has to begin, after whatever has to be read before.
func (l *follower) open(ctx context.Context) (*frames, error) {
	if l.position != "" {
		if err := l.compare(ctx); err != nil {
			return nil, err
		}
		if l.refused != nil { // in the last run, which did not come to the end of the state
			l.position, l.fill = "", false
			return l.watchAfterPages(ctx)
		}
		w, err := l.goOn(ctx)
		if !isRefusal(err) {
			return w, err
		}
		l.refuse(err)
	}
	// A gap record names the resource version that closes the gap before the differences follow. Pages of a list
	// tell it at once; a watch-list only at its end.
	if l.pagesOnly || l.refused != nil {
		return l.watchAfterPages(ctx)
	}
	w, err := l.watchList(ctx)
	if isWatchListUnsupported(err) {
		l.logger.Info("the API server has no watch-list; reading pages instead", "err", err)
		l.pagesOnly = true
		return l.watchAfterPages(ctx)
	}
	return w, err
}

// compare holds the position against the server's present one, with the smallest list there is (a quorum read). A server
// whose history went back takes a future position without a word, and leaves out what happens up to it. Of a position of
// this run that is no more than a precaution, which must not cost a watch that the server grants.
func (l *follower) compare(ctx context.Context) error {
	if l.rolledBack != nil {
		return l.rolledBack
	}
	listing := ctx
	if !l.restored {
		var cancel context.CancelFunc
		listing, cancel = context.WithTimeout(ctx, precaution)
		defer cancel()
	}
	now, err := l.collection.list(listing, listOptions{limit: 1})
	if err != nil && !l.restored {
		return nil //nolint:nilerr // as said above
	}
	if err != nil {
		return err
	}
	if order, err := resourceversion.CompareResourceVersion(l.position, now.resourceVersion); err == nil && order > 0 {
		err := fmt.Errorf("%s: the API server is at resource version %s, before the position %s: its history has gone back, as after a restore of etcd",
			delta.ResourceName(l.collection.resource), now.resourceVersion, l.position)
		l.restored, l.rolledBack = false, err // for good, though the server may come to that version again
		if l.onRollback != nil {
			l.onRollback(err)
		}
		return err
	}
	if !l.restored {
		return nil
	}
	l.restored = false
	return l.process(ctx, event{marker: &marker{kind: compared, resourceVersion: now.resourceVersion}})
}

// goOn watches on from the position, after reading the state there if that is asked for.
func (l *follower) goOn(ctx context.Context) (*frames, error) {
	if l.fill {
		w, err := l.watchAfterPages(ctx)
		if !isRefusal(err) {
			return w, err
		}
		// The state at the position is forgotten; the history since need not be. The next event leads to a position
		// whose state can be had, see follow.
	}
	return l.resume(ctx)
}

// resume watches on from the position.
func (l *follower) resume(ctx context.Context) (*frames, error) {
	w, err := l.watch(ctx)
	if err != nil {
		return nil, err
	}
	l.opened(true)
	if l.begun {
		if err := l.process(ctx, event{marker: &marker{kind: abandon}}); err != nil {
			w.close()
			return nil, err
		}
		l.begun = false
	}
	return w, nil
}

// watchList opens a watch that begins with the state: the objects as ADDED in no order, a bookmark with an
// annotation at their end, then changes (KEP-3157).
func (l *follower) watchList(ctx context.Context) (*frames, error) {
	w, err := l.watch(ctx)
	if err != nil {
		return nil, err
	}
	l.opened(false)
	if err := l.process(ctx, event{marker: &marker{kind: begin}}); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// watch opens a watch at the position, or a watch-list if there is none. The server ends it after five to ten minutes, as
// it does client-go's, so that its watches spread over its replicas. A watch-list has more time: if a large state did not
// reach its end, it would begin anew for ever.
func (l *follower) watch(ctx context.Context) (*frames, error) {
	least := 5 * time.Minute
	if l.position == "" {
		least = time.Hour
	}
	return l.collection.watch(ctx, l.position, least+rand.N(least)) //nolint:gosec // no secret
}

// refuse gives the position up: the next watch begins with the whole state, behind a gap.
func (l *follower) refuse(err error) {
	l.logger.Warn("the API server refuses the history since the position: a gap; the difference follows",
		"resourceVersion", l.position, "err", err)
	l.refused = &refusal{from: l.position, reason: err.Error()}
	l.position, l.fill = "", false
}

// isRefusal reports whether the server says that it no longer has the history asked for.
func isRefusal(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// isWatchListUnsupported reports whether the server turned sendInitialEvents down, as one does that lacks the
// feature or has it switched off (validation of list options: Invalid; older ones: BadRequest).
func isWatchListUnsupported(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}
