package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kubeferry/kubeferry/delta"
)

// listerWatcher decides where a watch begins: at its own position, or with the whole state. It never goes by the
// resource version that the Reflector passes, which is that of the last object forwarded and means nothing inside
// an unordered snapshot.
//
// The Reflector calls one method at a time and stops a watch before it opens the next, so that the fields have one
// owner at any moment: the call, or the stream it returned.
type listerWatcher struct {
	collection collection
	// exists asks discovery whether the resource exists; an error means that it could not be told.
	exists func(ctx context.Context) (bool, error)
	health *health
	logger *slog.Logger

	// position is the resource version of the last event that the Reflector took, or of the last complete state;
	// empty when there is none, or the server refused it.
	position string
	// refused is the refusal that the next complete state closes.
	refused *refusal
	// pagesOnly is set once the server turned a watch-list down.
	pagesOnly bool

	// restored says that the position is the last run's and has not been compared with the server's, unclean that
	// nothing has been resumed from it yet and that run ended without a last commit.
	restored, unclean bool
	// fill asks for the state at the position before the watch goes on.
	fill bool
	// begun is set between the notes begin and end.
	begun      bool
	onRollback func(error)
	rolledBack error // what onRollback was told
}

var _ cache.ListerWatcherWithContext = (*listerWatcher)(nil)

// IsWatchListSemanticsUnSupported keeps the Reflector from asking for a watch-list of its own: it would hold all of
// it in memory before it passes the first object on. WatchWithContext opens one when the state is needed.
func (*listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext answers with an empty list at the position. The process function takes no notice of it: the
// Reflector may list as often as it likes.
func (l *listerWatcher) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	list := &unstructured.UnstructuredList{}
	list.SetResourceVersion(l.position)
	if l.position == "" {
		list.SetResourceVersion("0")
	}
	return list, nil
}

// List implements cache.ListerWatcher.
func (l *listerWatcher) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch implements cache.ListerWatcher.
func (l *listerWatcher) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// WatchWithContext opens a watch. Of the options only the time-out counts.
func (l *listerWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := l.open(ctx, options.TimeoutSeconds)
	if apierrors.IsNotFound(err) {
		exists, discoveryErr := l.exists(ctx)
		if discoveryErr == nil && !exists {
			last := &note{kind: gone, refused: l.refused} // what happened before it went was refused, if so
			l.position, l.refused = "", nil
			return newStream(ctx, func(ctx context.Context, send func(watch.Event) bool) {
				send(watch.Event{Type: watch.Modified, Object: last})
				<-ctx.Done() // nothing follows: the watcher begins anew with discovery
			}), nil
		}
		err = cmp.Or(discoveryErr, err)
	}
	if err != nil && ctx.Err() == nil {
		l.health.failed(err)
	}
	return w, err
}

func (l *listerWatcher) open(ctx context.Context, timeout *int64) (watch.Interface, error) {
	if l.position != "" {
		if err := l.compare(ctx); err != nil {
			return nil, err
		}
		if l.refused != nil { // in the last run, which did not come to the end of the state
			l.position, l.fill, l.unclean = "", false, false
			return l.watchAfterPages(ctx, timeout)
		}
		w, err := l.goOn(ctx, timeout)
		if !isRefusal(err) {
			return w, err
		}
		l.refuse(err)
	}
	// A gap record names the resource version that closes the gap before the differences follow. Pages of a list
	// tell it at once; a watch-list only at its end.
	if l.pagesOnly || l.refused != nil {
		return l.watchAfterPages(ctx, timeout)
	}
	w, err := l.watchList(ctx, timeout)
	if isWatchListUnsupported(err) {
		l.logger.Info("the API server has no watch-list; reading pages instead", "err", err)
		l.pagesOnly = true
		return l.watchAfterPages(ctx, timeout)
	}
	return w, err
}

// compare holds the position against the server's present one, with the smallest list there is (a quorum read). A server
// whose history went back takes a future position without a word, and leaves out what happens up to it. Of a position of
// this run that is no more than a precaution, which must not cost a watch that the server grants.
func (l *listerWatcher) compare(ctx context.Context) error {
	if l.rolledBack != nil {
		return l.rolledBack
	}
	now, err := l.collection.list(ctx, listOptions{limit: 1})
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
		l.onRollback(err)
		return err
	}
	l.restored = false
	return nil
}

// goOn watches on from the position, after reading the state there if that is asked for.
func (l *listerWatcher) goOn(ctx context.Context, timeout *int64) (watch.Interface, error) {
	if l.fill {
		w, err := l.watchAfterPages(ctx, timeout)
		if !isRefusal(err) {
			return w, err
		}
		// The state at the position is forgotten; the history since need not be. The next event leads to a position
		// whose state can be had, see forward.
	}
	return l.resume(ctx, timeout)
}

// resume watches on from the position.
func (l *listerWatcher) resume(ctx context.Context, timeout *int64) (watch.Interface, error) {
	w, err := l.collection.watch(ctx, metav1.ListOptions{
		ResourceVersion: l.position, AllowWatchBookmarks: true, TimeoutSeconds: timeout,
	})
	if err != nil {
		return nil, err
	}
	l.health.opened(true)
	return newStream(ctx, func(ctx context.Context, send func(watch.Event) bool) {
		if !l.begun || send(watch.Event{Type: watch.Modified, Object: &note{kind: abandon}}) {
			l.begun = false
			l.forward(ctx, w, send)
		}
		w.Stop()
	}), nil
}

// watchList opens a watch that begins with the state: the objects as ADDED in no order, a bookmark with an
// annotation at their end, then changes (KEP-3157).
func (l *listerWatcher) watchList(ctx context.Context, timeout *int64) (watch.Interface, error) {
	sendInitialEvents := true
	w, err := l.collection.watch(ctx, metav1.ListOptions{
		SendInitialEvents: &sendInitialEvents, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		AllowWatchBookmarks: true, TimeoutSeconds: timeout,
	})
	if err != nil {
		return nil, err
	}
	l.health.opened(false)
	return newStream(ctx, func(ctx context.Context, send func(watch.Event) bool) {
		if send(watch.Event{Type: watch.Modified, Object: &note{kind: begin}}) {
			l.forward(ctx, w, send)
		}
		w.Stop()
	}), nil
}

// forward passes the events of w on and moves the position with them. Until a snapshot has ended there is no
// position, so that an interrupted one begins anew.
func (l *listerWatcher) forward(ctx context.Context, w watch.Interface, send func(watch.Event) bool) {
	defer w.Stop()
	for {
		var event watch.Event
		var ok bool
		select {
		case event, ok = <-w.ResultChan():
		case <-ctx.Done():
		}
		if !ok {
			return
		}
		resourceVersion := "" // that the event moves the position to
		object, isObject := event.Object.(*delta.Object)
		switch {
		case event.Type == watch.Error:
			l.streamFailed(apierrors.FromObject(event.Object))
		case !isObject:
			event = errorEvent(fmt.Errorf("a watch event %s of kind %s", event.Type, event.Object.GetObjectKind().GroupVersionKind()))
			l.streamFailed(apierrors.FromObject(event.Object))
		case event.Type == watch.Bookmark && bytes.Contains(object.JSON(), []byte(metav1.InitialEventsAnnotationKey)):
			resourceVersion = object.ResourceVersion()
			event = watch.Event{Type: watch.Modified, Object: &note{kind: end, resourceVersion: resourceVersion}}
		case l.position != "":
			resourceVersion = object.ResourceVersion()
		case event.Type == watch.Bookmark:
			continue // inside a snapshot it says nothing
		}
		if !send(event) || event.Type == watch.Error {
			return
		}
		if resourceVersion != "" {
			l.position = resourceVersion
			l.unclean = false // the server had the history; whatever happened was seen
			if l.fill {
				return
			}
		}
	}
}

// streamFailed takes note of an error that the server sent inside a stream.
func (l *listerWatcher) streamFailed(err error) {
	if isRefusal(err) && l.position != "" {
		l.refuse(err)
		return
	}
	l.health.failed(err)
}

// refuse gives the position up: the next watch begins with the whole state, behind a gap.
func (l *listerWatcher) refuse(err error) {
	l.logger.Warn("the API server refuses the history since the position: a gap; the difference follows",
		"resourceVersion", l.position, "err", err)
	l.refused = &refusal{from: l.position, reason: err.Error(), unclean: l.unclean}
	l.position, l.fill, l.unclean = "", false, false
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

// errorEvent makes the event that ends a stream with err.
func errorEvent(err error) watch.Event {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		return watch.Event{Type: watch.Error, Object: &s}
	}
	s := apierrors.NewInternalError(err).Status()
	return watch.Event{Type: watch.Error, Object: &s}
}
