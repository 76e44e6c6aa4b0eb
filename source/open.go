package source

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file decides where a watch begins: at the position, or behind the state, which is read before.

// open opens a watch where the next one has to begin, after whatever has to be read before.
func (l *follower) open(ctx context.Context, options metav1.ListOptions) (*frames, error) {
	for read := false; ; { // reading may block for long: whether the history has gone back is looked at again
		if err := l.look(ctx); err != nil {
			return nil, err
		}
		if l.position() != "" {
			f, err := l.resume(ctx, options)
			if err == nil {
				l.opened(true)
				return f, nil
			}
			if !isRefusal(err) {
				return nil, err
			}
			if l.refuse(err); read { // what was just read: it backs off
				return nil, err
			}
		}
		if err := l.read(ctx); err != nil && !errors.Is(err, errWentBack) {
			return nil, err
		}
		read = true
	}
}

// resume opens a watch that goes on from the position: one version before the last event, as others may have that version. An API server that
// has just started may refuse that, and accept the position itself. Then the history goes on, and a check shows whether something is missing.
func (l *follower) resume(ctx context.Context, options metav1.ListOptions) (*frames, error) {
	if l.state.Resume == l.state.Position || l.refused != l.state.Resume {
		f, err := l.watch(ctx, options, l.state.Resume)
		if !isRefusal(err) || l.state.Resume == l.state.Position {
			return f, err
		}
	}
	f, err := l.watch(ctx, options, l.state.Position)
	if err == nil {
		select {
		case l.suspect <- struct{}{}:
		default:
		}
	}
	return f, err
}

// look reads how far the API server is, by the smallest possible list (a quorum read), before a watch goes on or the state is read. A server
// that was restored from a backup accepts a position from its future and silently omits the changes up to it. So every watch waits for this
// look, after whatever may block, even if its history expires meanwhile: that is reported as a gap.
func (l *follower) look(ctx context.Context) error {
	p, err := l.from().newest(ctx)
	if err != nil {
		return err
	}
	now := versionNumber(p.resourceVersion)
	if now > 0 && now < l.state.Seen {
		return l.wentBack(ctx, now, fmt.Sprintf("the API server is at resource version %d, and was at %d", now, l.state.Seen))
	}
	l.mu.Lock()
	defer l.unlock()
	raise := l.state.Raise != nil
	l.handler.Update(func() {
		if l.state.Seen < now {
			l.state.Seen, l.state.changed = now, true
		}
		for n, pipeline := range l.options.Pipelines {
			if until, doubt := l.state.Doubt[pipeline]; doubt && until == "" {
				l.state.doubtUntil(p.resourceVersion, 1<<n)
			}
		}
		l.raiseOffset(now)
		l.state.changed = l.state.changed || raise
	})
	if raise {
		return l.handler.Commit(ctx)
	}
	return nil
}

// errWentBack is returned when the history has gone back while the state was read.
var errWentBack = errors.New("the API server's history has gone back")

// wentBack handles a history that has gone back, as after a restore of etcd: what was known are names. The state is read anew, under a raised
// offset. Nothing is sent before both are committed. An error means that ctx has ended.
func (w *watcher) wentBack(ctx context.Context, now uint64, proof string) error {
	w.mu.Lock()
	defer w.unlock()
	w.logger.Error("the history of the resource has gone back, as after a restore of etcd: a gap; what exists now follows", "proof", proof)
	w.handler.Update(func() {
		w.reading, w.lastGap = false, nil
		w.raiseOffset(now)
		w.options.Offset.raise(w.sequence(w.state.Seen))
		w.state.Restored++
		w.state.Seen = now
		w.state.doubtUntil(fmt.Sprint(now), w.options.all())
		w.state.readAnew(delta.GapLost, w.snapshotted()|w.state.pending())
	})
	return w.handler.Commit(ctx)
}

// watch opens a watch that begins behind a resource version.
func (l *follower) watch(ctx context.Context, options metav1.ListOptions, resourceVersion string) (*frames, error) {
	options.ResourceVersion = resourceVersion
	f, err := l.from().watch(ctx, options)
	if err == nil {
		l.at = resourceVersion
		f.bookmarks = l.bookmarks
	}
	return f, err
}

// refuse gives the position up: the state is read behind a gap, and a snapshot begins for each pipeline that is in doubt or has one that is not
// complete.
func (l *follower) refuse(err error) {
	l.mu.Lock()
	defer l.unlock()
	snapshots := (l.state.doubtful() & l.snapshotted()) | l.state.pending()
	l.logger.Warn("the API server has no history since the position: sending a gap record and the differences",
		"resourceVersion", l.state.Position, "err", err)
	l.handler.Update(func() { l.state.readAnew(delta.GapRefused, snapshots) })
}

// isRefusal reports whether the server no longer has the requested history.
func isRefusal(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
