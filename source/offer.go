package source

import (
	"cmp"
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file sends the objects of a snapshot: it lists them, and offers those that are due to their pipeline.

// offerAll reads the pages that are left, and sends those objects that are due. After an error, pages goes on where it was. unbrought is raised
// to the highest resource version of an object that the watch has not brought in that version or a later one.
func (w *watcher) offerAll(ctx context.Context, n int, sequence uint64, pages *pages, unbrought *uint64) error {
	for {
		p, err := pages.read(ctx)
		if isRefusal(err) { // it took longer than the server remembers: the other pages are of a later state, which is as good
			pages.next.Continue = continueLater(err)
		}
		if err != nil {
			return err
		}
		for _, object := range p.objects {
			if err := w.offer(ctx, n, sequence, object); err != nil {
				return err
			}
			*unbrought = max(*unbrought, w.notBrought(object))
		}
		if p.next == "" {
			return nil
		}
	}
}

// notBrought returns the resource version of a listed object, unless the watch has brought it or a later one; then, and if it is no number, 0.
func (w *watcher) notBrought(object *delta.Object) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, exists := w.known().find(keyOf(object))
	listed := versionNumber(object.ResourceVersion())
	if !w.selects(object.Namespace()) || exists && versionNumber(old.version.ResourceVersion()) >= listed {
		return 0
	}
	return listed
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
func (w *watcher) offer(ctx context.Context, n int, sequence uint64, object *delta.Object) error {
	if err := w.awaitPrevious(ctx); err != nil {
		return err
	}
	var err error
	return cmp.Or(w.untilRoom(ctx, n, func() (sent bool) {
		sent, err = w.tryOffer(ctx, n, sequence, object)
		return sent || err != nil
	}), err)
}

// tryOffer sends a listed object, if it is due in this version. It returns false if there is no room for it.
func (w *watcher) tryOffer(ctx context.Context, n int, sequence uint64, object *delta.Object) (sent bool, err error) {
	old, exists := w.known().find(keyOf(object))
	version := object.Version()
	if !w.runs(n, sequence) {
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
	d := snapshotOf(object)
	if w.silent(1<<n) != 0 {
		return true, w.emit(ctx, d, 1<<n, old.views, func(v views) { record(v.snapshotted(n)) })
	}
	w.stamp(d)
	d.SnapshotSequence = w.state.named(w.options.Pipelines[n], d)
	sent = w.handler.Recipient(n).Offer(ctx, d, !old.filtered.Has(n), func(passed bool) {
		var to PipelineSet
		if passed {
			to = 1 << n
		}
		w.state.countSnapshot(to)
		record(old.sent(1<<n, to, w.options.Announcing).snapshotted(n))
	})
	if sent {
		w.seen[d.Type].Inc()
	}
	return sent, nil
}

// errBeginsAnew is returned for an object of a snapshot that has ended meanwhile.
var errBeginsAnew = errors.New("the snapshot begins anew")

func snapshotOf(object *delta.Object) *delta.Delta {
	return &delta.Delta{Type: delta.Added, Object: object, Snapshot: true}
}
