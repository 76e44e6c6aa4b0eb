package source

import (
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file ends a watch that is not selected any more, while its source runs or since an edit: nothing that happened before is lost.

const (
	// endingTimeout is how long the watches of one that ends stay open: the API server sends a bookmark before it ends each.
	endingTimeout = 5 * time.Second
	// withoutBookmarks is how long to wait for a bookmark. There are none of resources that the API server does not cache, such as Events: then
	// a list shows whether the watch has brought all.
	withoutBookmarks = 2 * time.Minute
)

// start runs the watch until ctx ends or stop is called.
func (w *watcher) start(ctx context.Context, running *sync.WaitGroup) {
	ctx, w.stop = context.WithCancel(ctx)
	w.stopped = make(chan struct{})
	running.Go(func() {
		defer close(w.stopped)
		defer w.stop()
		w.run(ctx)
	})
}

// knowsNothing reports whether the watch can end without anything that is due, as far as that is known at once.
func (w *watcher) knowsNothing() bool {
	if !w.mu.TryLock() { // the process function is at work
		return false
	}
	defer w.unlock()
	return !w.knowsSomething()
}

// catchUp waits until the watch has brought everything that had happened when it began to leave the selection: the objects of a namespace that
// was deleted were deleted before it. It returns false if the watch is selected again, or ctx has ended. gone is set if the namespace was deleted
// with the right to read it, so that nothing more can be read.
func (w *watcher) catchUp(ctx context.Context) (ends, gone bool) {
	w.mu.Lock()
	w.cut() // the next watch is a short one
	w.unlock()
	var newest uint64
	var since time.Time
	for read := false; w.leaving.Load(); {
		if w.knowsNothing() {
			return true, false
		}
		if w.health.isForbidden() && w.namespaceGone(ctx) {
			return w.leaving.Load(), true
		}
		if !read {
			if p, err := w.collection.newest(ctx); err == nil {
				newest, since, read = versionNumber(p.resourceVersion), time.Now(), true
			}
		}
		if read && (w.reached(newest) || time.Since(since) > w.options.bookmarks && w.hasBroughtAll(ctx)) {
			return w.leaving.Load(), false
		}
		select {
		case <-time.After(selectInterval):
		case <-ctx.Done():
			return false, false
		}
	}
	return false, false
}

// namespaceGone reports whether a list shows that there is no such namespace. Then nothing in it exists any more.
func (w *watcher) namespaceGone(ctx context.Context) bool {
	name := w.collection.namespace
	all := collection{client: w.collection.client, resource: namespaces, fieldSelector: "metadata.name=" + name}
	p, err := all.list(ctx, metav1.ListOptions{})
	return err == nil && name != "" && !slices.ContainsFunc(p.objects, func(o *delta.Object) bool { return o.Name() == name })
}

// reached reports whether the position is at a resource version.
func (w *watcher) reached(version uint64) bool {
	w.mu.Lock()
	defer w.unlock()
	return w.state.read() && versionNumber(w.state.Position) >= version
}

// hasBroughtAll reports whether the open watch has brought all that a list shows.
func (w *watcher) hasBroughtAll(ctx context.Context) bool {
	status := w.health.status()
	found, _, err := w.differences(ctx, true)
	return err == nil && len(found) == 0 && status.State == StateWatching && !status.Blocked
}

// leave reports to the pipelines that what is known is not selected any more: by a DELETED to those with `onLeave: deleted`, and by the mark of an
// empty snapshot. Their sequence is above all that was sent; whatever a later watch of the same name sends is above that. An error means that
// ctx has ended.
func (w *watcher) leave(ctx context.Context) error {
	w.mu.Lock()
	defer w.unlock()
	s := w.state
	if w.store == nil && s.Seen == 0 {
		return nil // nothing was listed, and nothing sent
	}
	if w.known().len() == 0 && len(s.Doubt) == 0 && len(s.Snapshots) == 0 && s.Gap == "" && !s.Begun {
		return nil // all that pipelines had is deleted
	}
	last, err := w.beginEnd(ctx, false)
	if err != nil {
		return err
	}
	sequence := max(w.options.Offset.Current(), last+1)
	for key, object := range w.known().unseen {
		w.at = time.Now()   // each may wait for room by itself
		if w.store == nil { // the sequence of its next ADDED would not be above that of a DELETED
			w.handler.Update(func() { w.known().remove(key) })
		} else if err := w.emitLeft(ctx, key, object, sequence); err != nil {
			return err
		}
	}
	return w.endEmpty(ctx, sequence)
}
