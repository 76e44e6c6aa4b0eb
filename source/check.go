package source

import (
	"context"
	"hash/maphash"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file compares what exists with the known set, beside the open watch. A watch cannot notice what an API server, a proxy or a bug of ours
// has swallowed.

// checkPause is between two pages of a check: it is in no hurry.
const checkPause = 200 * time.Millisecond

// runChecks checks as often as that is configured, and when something may be missing, until ctx ends.
func (w *watcher) runChecks(ctx context.Context) {
	for {
		var due <-chan time.Time
		if w.options.Check > 0 {
			due = time.After(wait.Jitter(w.options.Check, 0.1))
		}
		select {
		case <-due:
		case <-w.suspect:
		case <-ctx.Done():
			return
		}
		_ = w.options.Backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) { // an error means that ctx has ended
			err := w.check(ctx)
			if err != nil && ctx.Err() == nil {
				w.logger.Debug("cannot compare what exists with what is known; trying again", "err", err)
			}
			return err == nil, nil
		})
	}
}

// difference is an object that a list and the known set do not both have in a version.
type difference struct {
	key     objectKey
	version delta.Version
	listed  bool
}

// check looks twice for differences. Those of the first look may be changes that the watch brings, or has brought since the list was made. One
// that is still there when the watch has reached that list is none: then the state is read again, behind a gap record.
func (w *watcher) check(ctx context.Context) error {
	first, version, err := w.differences(ctx, false)
	if err != nil || len(first) == 0 {
		return err
	}
	err = w.await(ctx, func() bool { return versionNumber(w.state.Position) >= version || w.state.Gap != "" })
	if err != nil {
		return err
	}
	again, _, err := w.differences(ctx, false)
	if err != nil {
		return err
	}
	lasting := slices.ContainsFunc(first, func(d difference) bool {
		return slices.ContainsFunc(again, func(other difference) bool {
			return d.key == other.key && d.listed == other.listed && d.version.Equal(&other.version)
		})
	})
	w.mu.Lock()
	defer w.unlock()
	if !lasting || w.state.Gap != "" || w.reading {
		return nil
	}
	w.logger.Error("objects differ from what the watch has reported: reading all objects again", "objects", len(first))
	w.handler.Update(func() { w.state.readAnew(delta.GapCheck, 0) })
	w.cut()
	return nil
}

// differences lists the metadata of what exists, and returns how that differs from the known set: at most a thousand objects. Objects in versions
// above the position count only if ahead is set. The resource version is that of the list.
func (w *watcher) differences(ctx context.Context, ahead bool) (found []difference, version uint64, err error) {
	const most = 1000
	all := w.collection
	all.metadataOnly = true
	seed := maphash.MakeSeed()
	hash := func(key objectKey) uint64 { return maphash.Comparable(seed, key) }
	var listed []uint64
	for pages := all.pages(); ; {
		p, err := pages.read(ctx)
		if err != nil {
			return nil, 0, err
		}
		if version == 0 {
			version = versionNumber(p.resourceVersion)
		}
		w.mu.Lock()
		position := versionNumber(w.state.Position)
		for _, object := range p.objects {
			key, number, is := keyOf(object), versionNumber(object.ResourceVersion()), object.Version()
			listed = append(listed, hash(key))
			known, exists := w.known().find(key)
			differs := !exists || !known.version.SameObject(&is) || versionNumber(known.version.ResourceVersion()) < number
			if differs && number > 0 && (number <= position || ahead) && w.selects(object.Namespace()) && len(found) < most {
				found = append(found, difference{key.own(), is, true})
			}
		}
		w.mu.Unlock()
		if p.next == "" {
			break
		}
		select {
		case <-time.After(checkPause):
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
	slices.Sort(listed)
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, known := range w.known().all {
		if len(found) == most || versionNumber(known.version.ResourceVersion()) > version {
			continue
		}
		if _, is := slices.BinarySearch(listed, hash(key)); !is {
			found = append(found, difference{key, known.version, false})
		}
	}
	return found, version, nil
}
