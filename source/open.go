package source

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file decides where a watch begins: at the position, or with the whole state.

// open opens a watch where the next one has to begin, after whatever has to be read before.
func (l *follower) open(ctx context.Context, options metav1.ListOptions) (*frames, error) {
	if err := l.keepReadIfComparable(ctx); err != nil {
		return nil, err
	}
	if reached := l.reached(); reached != "" {
		if err := l.checkRollback(ctx, reached); err != nil {
			return nil, err
		}
	}
	if l.state.Position != "" && l.state.Uncertain != "" && l.state.Refused == "" { // a refusal has a gap record itself
		if err := l.gapForUncertain(ctx); err != nil {
			return nil, err
		}
		return l.open(ctx, options) // it may have blocked for long: the position is checked again
	}
	if l.position() != "" {
		f, err := l.resume(ctx, options)
		if !isRefusal(err) {
			return f, err
		}
		l.refuse(err)
		if l.comparing {
			return l.open(ctx, options)
		}
	}
	// A gap record is sent before the differences and names the resource version that closes the gap: the first page of a list has
	// it, a watch-list sends it only at its end. Objects that are no longer selected can be looked up only after pages, too.
	if l.pagesOnly || l.state.Refused != "" || l.state.Partial {
		return l.watchAfterPages(ctx, options)
	}
	f, err := l.watchList(ctx, options)
	if isWatchListUnsupported(err) {
		if err := l.from().check(ctx); err != nil { // it is the selectors that the server refuses
			return nil, err
		}
		l.logger.Info("the API server has no watch-list; reading pages instead", "err", err)
		l.pagesOnly = true
		return l.watchAfterPages(ctx, options)
	}
	return f, err
}

// keepReadIfComparable forgets what was read of a resource before it was gone if no CRD defines the resource: another API server may serve
// it now, with resource versions of its own. Those of a CRD's objects never go back, whether or not the CRD was made again.
func (l *follower) keepReadIfComparable(ctx context.Context) error {
	l.mu.Lock()
	read := l.state.Absent && l.state.Reading > 0
	l.mu.Unlock()
	if !read {
		return nil
	}
	exists, err := l.collection.client.hasCRD(ctx, l.collection.resource.GroupResource())
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("look for the CustomResourceDefinition of %s: %w", delta.ResourceName(l.collection.resource), err)
	}
	if exists && err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.unlock()
	l.handler.Update(func() { l.state.Reading, l.state.changed = 0, true })
	return nil
}

// reached returns the newest resource version that is certain to have existed. While a first state or one behind a gap is read, that is
// ahead of the position.
func (l *follower) reached() string {
	if l.state.Position != "" && l.state.Refused == "" {
		return l.state.Position
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	position := versionNumber(l.state.Position)
	newest := max(position, l.state.Reading)
	for _, object := range l.known().all {
		newest = max(newest, versionNumber(object.version.ResourceVersion()))
	}
	if newest == position {
		return l.state.Position
	}
	return fmt.Sprint(newest)
}

// checkRollback returns an error if the position, or what was read beyond it, is ahead of the server's resource version, which the smallest
// possible list returns (a quorum read). A server that was restored from a backup accepts a position from its future and silently omits the
// changes up to it. So every watch waits for this check, after whatever may block, even if its history expires meanwhile: that is
// reported as a gap.
func (l *follower) checkRollback(ctx context.Context, position string) error {
	if l.rolledBack != nil {
		return l.rolledBack
	}
	now, err := l.from().newest(ctx)
	if err != nil {
		return err
	}
	if order, err := resourceversion.CompareResourceVersion(position, now.resourceVersion); err == nil && order > 0 {
		return l.rollBack("the API server is at resource version %s, before the position %s", now.resourceVersion, position)
	}
	if l.resumed && l.state.Position != "" {
		l.resumed, l.lastRun = false, now.resourceVersion
	}
	return nil
}

// rollBack reports that the server's history has gone back, and returns the error of each watch from here on.
func (l *follower) rollBack(format string, args ...any) error {
	l.rolledBack = fmt.Errorf("%s: %s: its history has gone back, as after a restore of etcd", delta.ResourceName(l.collection.resource), fmt.Sprintf(format, args...))
	if l.options.OnRollback != nil {
		l.options.OnRollback(l.rolledBack)
	}
	return l.rolledBack
}

// checkObjects returns an error if objects that are listed behind a refusal show that the server's history has gone back. A restore with
// etcdutl's --bump-revision raises the server's resource version, and leaves those of the objects as they were. But within one history an
// object is never in a lower version than before, and what a complete known set lacks was made behind the position; but what a selector
// selects may change without a new version. It is of no use without a state directory, which has the epoch, or without snapshots.
func (l *follower) checkObjects(objects []*delta.Object) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.store == nil || l.options.Snapshot == delta.SnapshotNever || l.state.Refused == "" || l.state.Position == "" {
		return nil
	}
	whole := l.state.Complete && !l.state.Partial && l.options.LabelSelector == "" && l.options.FieldSelector == ""
	for _, object := range objects {
		version := versionNumber(object.ResourceVersion())
		if version == 0 || !l.selects(object.Namespace()) {
			continue
		}
		old, exists := l.known().find(keyOf(object))
		if before := versionNumber(old.version.ResourceVersion()); exists && version < before {
			return l.rollBack("the API server has %s in resource version %d, and had it in %d", object.Name(), version, before)
		}
		if !exists && whole && version <= versionNumber(l.state.Position) {
			return l.rollBack("the API server has %s in resource version %d, and did not have it at the position %s", object.Name(), version, l.state.Position)
		}
	}
	return nil
}

// resume watches on from the position, after reading the state there if that is due.
func (l *follower) resume(ctx context.Context, options metav1.ListOptions) (*frames, error) {
	if l.fill || l.comparing {
		f, err := l.watchAfterPages(ctx, options)
		if !isRefusal(err) || l.comparing {
			return f, err
		}
		// The server has forgotten the state at the position, but perhaps not the history since. The next event moves the
		// position, perhaps to where the state can be had.
		if l.state.Partial && l.state.Unclean && !l.ambiguous {
			l.doubt()
			return l.open(ctx, options)
		}
	}
	f, err := l.watch(ctx, options)
	if err != nil {
		return nil, err
	}
	if l.fill {
		f.until = l.state.Position
	}
	l.opened(true)
	if l.reading { // pages at the position that were not read to their end
		l.abandon()
	}
	return f, nil
}

// watchList opens a watch that begins with the state: the objects as ADDED in no order, a bookmark with an
// annotation at their end, then changes (KEP-3157).
func (l *follower) watchList(ctx context.Context, options metav1.ListOptions) (*frames, error) {
	if err := l.boundFirstState(ctx); err != nil {
		return nil, err
	}
	options.SendInitialEvents = new(true)
	options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	// At least an hour, not five minutes: a large state that did not reach its end in time would start over each time.
	options.TimeoutSeconds = new(12 * *options.TimeoutSeconds)
	f, err := l.watch(ctx, options)
	if err != nil {
		return nil, err
	}
	l.opened(false)
	if err := l.begin(ctx, "", false); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// boundFirstState notes the resource version before a first state by watch-list, which names its own at its end only. After a kill it is
// known by that how high the sequences can be that were sent without a commit.
func (l *follower) boundFirstState(ctx context.Context) error {
	now, err := l.from().newest(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.unlock()
	l.handler.Update(func() {
		l.state.Reading, l.state.changed = max(l.state.Reading, versionNumber(now.resourceVersion)), true
	})
	return nil
}

// watch opens a watch that goes on from the position.
func (l *follower) watch(ctx context.Context, options metav1.ListOptions) (*frames, error) {
	if options.ResourceVersion = l.position(); options.ResourceVersion != "" {
		options.ResourceVersion = l.state.Resume
	}
	f, err := l.from().watch(ctx, options)
	if err == nil {
		f.bookmarks = l.bookmarks
	}
	return f, err
}

// doubt makes a gap record due: a killed run may have sent what the edited selection adds, and the known set still lacks it.
func (l *follower) doubt() {
	l.mu.Lock()
	defer l.unlock()
	l.ambiguous = true
	l.handler.Update(func() {
		l.state.Uncertain, l.state.Repetition, l.state.changed = killedAndEdited, newSnapshotID(), true
	})
}

// refuse gives the position up: the next watch begins with the whole state, behind a gap. But first it looks whether the server refuses only
// the version before the last event, as one does that has just started, and has the position: then the state there is compared, and the
// history goes on.
func (l *follower) refuse(err error) {
	if l.state.Resume != l.state.Position && !l.comparing && !l.fill && !l.state.Partial {
		l.comparing = true
		return
	}
	l.comparing = false
	l.logger.Warn("the API server refuses the history since the position: a gap; the difference follows",
		"resourceVersion", l.state.Position, "err", err)
	l.mu.Lock()
	defer l.unlock()
	l.fill = false
	l.handler.Update(func() { l.state.Refused, l.state.changed = err.Error(), true })
}

// isRefusal reports whether the server no longer has the requested history.
func isRefusal(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// isWatchListUnsupported reports whether the server turned sendInitialEvents down, as one does that lacks the
// feature or has it switched off (validation of list options: Invalid; older ones: BadRequest).
func isWatchListUnsupported(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}
