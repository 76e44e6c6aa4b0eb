package source

import (
	"cmp"
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file sends the objects of a snapshot: it lists them, and offers those that are due to their pipeline.

// offerAll lists the objects from a page on, and sends those that are due. After an error, page is where to go on. While changes may be
// repeated it also reports whether there are objects that the watch has not brought: a killed run may have sent them before the first
// mark, and the snapshot is not complete without them.
func (w *watcher) offerAll(ctx context.Context, n int, id string, page *metav1.ListOptions, repeating bool) (unknown bool, err error) {
	for repeating || w.due(n) > 0 {
		p, err := w.collection.list(ctx, *page)
		if isRefusal(err) { // it took longer than the server remembers: the other pages are of a later state, which is as good
			page.Continue = continueLater(err)
		}
		if err != nil {
			return unknown, err
		}
		for _, object := range p.objects {
			unknown = unknown || repeating && w.selects(object.Namespace()) && !w.isKnown(object)
			if err := w.offer(ctx, n, id, object); err != nil {
				return unknown, err
			}
		}
		*page = metav1.ListOptions{Limit: p.limit, Continue: p.next}
		if p.next == "" {
			break
		}
	}
	return unknown, nil
}

func (w *watcher) isKnown(object *delta.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, exists := w.known().find(keyOf(object))
	return exists
}

// continueLater returns the token with which a refused list goes on; if there is none, it begins again.
func continueLater(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return ""
	}
	return status.Status().Continue
}

// offer sends a listed object, if it is due in this version, and waits until there is room for it.
func (w *watcher) offer(ctx context.Context, n int, id string, object *delta.Object) error {
	if err := w.options.Previous.await(ctx); err != nil {
		return err
	}
	var err error
	return cmp.Or(w.untilRoom(ctx, n, func() (sent bool) {
		sent, err = w.tryOffer(ctx, n, id, object)
		return sent || err != nil
	}), err)
}

// tryOffer sends a listed object, if it is due in this version. It returns false if there is no room for it.
func (w *watcher) tryOffer(ctx context.Context, n int, id string, object *delta.Object) (sent bool, err error) {
	old, exists := w.known().find(keyOf(object))
	version := object.Version()
	if w.state.Snapshots[w.options.Pipelines[n]].ID != id {
		return true, errBeginsAnew
	}
	if !exists || !old.due.Has(n) || !old.version.Equal(&version) {
		return true, nil
	}
	retain := func(views) []byte { return nil }
	if !old.retained && w.options.RetainFor.Has(n) {
		retain = w.retain(object)
	}
	record := func(v views) { w.known().review(keyOf(object), v, retain(v)) }
	w.at = time.Now()
	d := w.snapshotOf(object, n)
	if w.silent(1<<n) != 0 {
		return true, w.emit(ctx, d, 1<<n, old.views, func(v views) { record(v.snapshotted(n)) })
	}
	w.stamp(d)
	sent = w.handler.Recipient(n).Offer(ctx, d, !old.filtered.Has(n), func(passed bool) {
		var to PipelineSet
		if passed {
			to = 1 << n
		}
		w.state.countSnapshot(to)
		record(old.sent(1<<n, to).snapshotted(n))
	})
	if sent {
		w.metrics.seen[d.Type].Inc()
	}
	return sent, nil
}

// errBeginsAnew is returned for an object of a snapshot that has ended meanwhile.
var errBeginsAnew = errors.New("the snapshot begins anew")

func (w *watcher) snapshotOf(object *delta.Object, n int) *delta.Delta {
	return &delta.Delta{
		Type: delta.Added, Object: object, Snapshot: true, SnapshotID: w.state.Snapshots[w.options.Pipelines[n]].ID,
	}
}

// repeating reports whether the changes may be those that a killed run has sent to a pipeline.
func (w *watcher) repeating(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.doubtful().Has(n)
}

// due returns how many objects a snapshot has not reached.
func (w *watcher) due(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known().due[n]
}
