package source

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// read reads the state page by page, and passes it on between begin and complete. An expired continue token ends it, like any other error: the
// next attempt starts over.
func (l *follower) read(ctx context.Context) error {
	pages := l.from().pages()
	p, err := pages.read(ctx)
	if err != nil {
		if apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) { // perhaps it is the selectors that the server refuses
			err = cmp.Or(l.from().trySelectors(ctx), err)
		}
		return err
	}
	version := versionNumber(p.resourceVersion)
	if err := l.checkObjects(ctx, p.objects, version); err != nil {
		return err
	}
	l.opened(false)
	l.confirm()
	if err := l.begin(ctx, version); err != nil {
		return err
	}
	for resourceVersion := p.resourceVersion; ; {
		for _, object := range p.objects {
			if err := l.process(ctx, event{kind: watch.Added, object: object}); err != nil {
				return err
			}
		}
		if p.next == "" {
			return l.complete(ctx, resourceVersion)
		}
		if p, err = pages.read(ctx); err != nil {
			return err
		}
		if err := l.checkObjects(ctx, p.objects, version); err != nil {
			return err
		}
	}
}

// begin starts reading the state: up to complete, what is processed are the objects of a list. Two cases are committed first. In a gap, so
// that a restart infers the same deltas. And a first state, as begun: after a kill its objects may have been sent without a commit that
// names them, so the next run reports a gap.
func (w *watcher) begin(ctx context.Context, version uint64) error {
	w.mu.Lock()
	defer w.unlock()
	first := w.state.Position == ""
	w.handler.Update(func() {
		w.reading, w.listed = true, version
		w.known().beginRound()
		w.state.Seen = max(w.state.Seen, version)
		w.state.Begun, w.state.changed = first, true
	})
	w.beginSnapshots(first) // before the commit: what a run names that is killed, the next one does not name again
	var err error
	if first || w.state.Gap != "" {
		err = w.handler.Commit(ctx)
	}
	if err == nil && w.state.Gap != "" {
		err = w.gap(ctx, version, w.state.Gap)
	}
	return err
}

// complete ends the reading of a state.
func (w *watcher) complete(ctx context.Context, resourceVersion string) error {
	w.mu.Lock()
	defer w.unlock()
	if err := w.deleteUnseen(ctx, w.sequence(w.listed)); err != nil {
		return err
	}
	w.at = time.Now()
	w.handler.Update(func() {
		w.reading = false
		w.state.Begun, w.state.Gap, w.state.Reselected, w.state.Absent = false, "", false, false
		w.move(resourceVersion, resourceVersion)
	})
	w.lastGap = nil
	w.health.completed()
	w.wakeSnapshots()
	return nil
}

// deleteUnseen infers the deletion of what a complete state does not hold. sequence is that of the deletions. What is not selected any more may
// exist all the same.
func (w *watcher) deleteUnseen(ctx context.Context, sequence uint64) error {
	for key, object := range w.known().unseen {
		w.at = time.Now() // each may wait for room by itself
		emit := w.emitInferredDelete
		if w.state.Reselected || !w.selects(key.namespace.Value()) {
			emit = w.emitLeft
		}
		if err := emit(ctx, key, object, sequence); err != nil {
			return err
		}
	}
	return nil
}

// checkObjects looks whether objects that are listed behind a refusal show that the server's history has gone back. A restore with
// etcdutl's --bump-revision raises the server's resource version, and leaves those of the objects as they were. But within one history an
// object is never in a lower version than before, and what a complete known set lacks was made behind the position; but what a selector
// selects may change without a new version.
func (l *follower) checkObjects(ctx context.Context, objects []*delta.Object, now uint64) error {
	l.mu.Lock()
	check := l.state.Gap == delta.GapRefused && l.options.Snapshot != delta.SnapshotNever
	whole := l.options.LabelSelector == "" && l.options.FieldSelector == ""
	position := versionNumber(l.state.Position)
	proof := ""
	for _, object := range objects {
		version := versionNumber(object.ResourceVersion())
		if !check || version == 0 || !l.selects(object.Namespace()) {
			continue
		}
		old, exists := l.known().find(keyOf(object))
		if before := versionNumber(old.version.ResourceVersion()); exists && version < before {
			proof = fmt.Sprintf("the API server has %s in resource version %d, and had it in %d", object.Name(), version, before)
		} else if !exists && whole && version <= position {
			proof = fmt.Sprintf("the API server has %s in resource version %d, and did not have it at the position %d", object.Name(), version, position)
		}
	}
	l.unlock()
	if proof == "" {
		return nil
	}
	if err := l.wentBack(ctx, now, proof); err != nil {
		return err
	}
	return errWentBack
}
