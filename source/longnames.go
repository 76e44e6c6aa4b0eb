package source

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"unique"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file keeps long names out of memory. A name may have 253 characters, and whoever may create objects chooses it. Where commits
// are recorded, the tables have a hash in place of a long name: what finds an object by its name hashes that first. What goes through
// the objects and needs the names reads them from the store, and for what no commit has written yet from the known set.

const (
	// longestName is the longest name, in bytes, that a table holds.
	longestName = 63
	// hashMark begins the hash in place of a name. No name of an object that the API server takes holds a slash.
	hashMark = '/'
	hashSize = 16
)

// entryKey is what a table has in place of an objectKey.
type entryKey struct {
	namespace unique.Handle[string]
	name      string
}

// hashKey makes the hashes differ from run to run: equal ones cannot be found before.
var hashKey = rand.Text()

// entryOf returns what the tables have in place of a key.
func (k *knownSet) entryOf(key objectKey) entryKey {
	if !k.recorded || !isLong(key.name) {
		return entryKey(key)
	}
	var room [320]byte
	sum := sha256.Sum256(append(append(room[:0], hashKey...), key.name...))
	var name [1 + hashSize]byte
	name[0] = hashMark
	copy(name[1:], sum[:])
	return entryKey{key.namespace, string(name[:])}
}

// isHashed reports whether an entry has a hash in place of its name.
func (k *knownSet) isHashed(entry entryKey) bool {
	return k.recorded && strings.HasPrefix(entry.name, string(hashMark))
}

// isLong reports whether a table with hashes has one in place of a name; also of one that looks like a hash.
func isLong(name string) bool {
	return len(name) > longestName || strings.HasPrefix(name, string(hashMark))
}

// unwritten returns the long names of the objects that no commit, or only the one in progress, has written. Meanwhile nothing may be
// captured. The store has those of all other objects.
func (k *knownSet) unwritten() map[objectKey]struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	names := map[objectKey]struct{}{}
	for _, keys := range []map[objectKey]struct{}{k.changed, k.captured} {
		for key := range keys {
			if _, exists := k.find(key); exists && isLong(key.name) {
				names[key] = struct{}{}
			}
		}
	}
	return names
}

// eachHashed calls f with each of the count objects in hashed entries for which match holds, once at most, but not with those removed
// meanwhile. f may change and remove objects, not add any. unwritten is the result of that method, called before. read returns a page
// of the store: the objects behind one, none at the end. left is how many objects were not found.
func (k *knownSet) eachHashed(
	count int, match func(knownObject) bool, unwritten map[objectKey]struct{},
	read func(after *delta.Known) ([]delta.Known, error), f func(objectKey, knownObject) error,
) (left int, err error) {
	for key := range unwritten {
		if object, exists := k.find(key); exists && match(object) {
			count--
			if err := f(key, object); err != nil {
				return count, err
			}
		}
	}
	var after *delta.Known
	for count > 0 {
		page, err := read(after)
		if err != nil || len(page) == 0 {
			return count, err
		}
		for i := range page {
			if !isLong(page[i].Name) {
				continue
			}
			key := keyOfKnown(&page[i])
			if _, done := unwritten[key]; done {
				continue
			}
			if object, exists := k.find(key); exists && match(object) {
				count--
				if err := f(key, object); err != nil {
					return count, err
				}
			}
		}
		after = &page[len(page)-1]
	}
	return count, nil
}

// namesPage is how many objects are read of the store at once.
const namesPage = 1000

// eachHashed is that of the known set. While the store cannot be read it tries again, with a back-off: without its name, the DELETED of
// an object would be lost. An error means that ctx has ended, or is that of f.
func (w *watcher) eachHashed(ctx context.Context, count int, match func(knownObject) bool, f func(objectKey, knownObject) error) error {
	if count == 0 {
		return nil
	}
	var unwritten map[objectKey]struct{}
	w.handler.Update(func() { unwritten = w.known().unwritten() })
	left, err := w.known().eachHashed(count, match, unwritten, func(after *delta.Known) ([]delta.Known, error) {
		return w.readNames(ctx, after)
	}, f)
	if err == nil && left > 0 {
		w.logger.Error("the state directory lacks the names of known objects: what is due of them cannot be sent", "objects", left)
	}
	return err
}

func (w *watcher) readNames(ctx context.Context, after *delta.Known) (page []delta.Known, err error) {
	failing := false
	err = w.options.Backoff.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		var failed error
		if page, failed = w.store.KnownBehind(w.id, after, namesPage); failed == nil {
			return true, nil
		}
		if !failing {
			w.logger.Error("cannot read names of known objects from the state directory; the watch waits, and tries again", "err", failed)
		}
		failing = true
		return false, nil
	})
	return page, err
}

// eachUnseen calls f with the objects that were not put in this round. They may be removed meanwhile. An error means that ctx has
// ended, or is that of f.
func (w *watcher) eachUnseen(ctx context.Context, f func(objectKey, knownObject) error) error {
	hashed := 0
	for entry, object := range w.known().unseen {
		if w.known().isHashed(entry) {
			hashed++
		} else if err := f(objectKey(entry), object); err != nil {
			return err
		}
	}
	return w.eachHashed(ctx, hashed, w.known().isUnseen, f)
}

// hashedNames returns the names of the objects in hashed entries for which match holds. An error means that ctx has ended.
func (w *watcher) hashedNames(ctx context.Context, match func(knownObject) bool) (names []objectKey, err error) {
	if w.known().hashed == 0 {
		return nil, nil
	}
	count := 0
	for entry, object := range w.known().all {
		if w.known().isHashed(entry) && match(object) {
			count++
		}
	}
	err = w.eachHashed(ctx, count, match, func(key objectKey, _ knownObject) error {
		names = append(names, key)
		return nil
	})
	return names, err
}
