package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/gofrs/flock"
	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/durable"
)

// copySuffix is of a copy that is not whole. A standby that is killed may leave one; the next copy replaces it.
const copySuffix = ".copy"

// Replica is the state directory of a standby: a copy of the leader's state, and the copy that will take its place.
type Replica struct {
	path   string
	report func(message string, err error)
	lock   *flock.Flock // of the directory; nil once Lead was called

	info atomic.Pointer[Info] // of db; who stands for election reads it, and does not wait for mu

	mu   sync.Mutex // guards what follows
	db   *bolt.DB   // nil for none
	next *bolt.DB   // the copy that is not whole; nil for none
	// failed is set if db could not be written once.
	failed bool
	// unusable is why the file in the directory cannot be used; it is set aside when a copy takes its place.
	unusable error
}

// OpenReplica opens a state directory to follow a leader. What is in it is not changed before a copy of the leader's state is
// whole.
func OpenReplica(dir string, report func(message string, err error)) (*Replica, error) {
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	r := &Replica{path: filepath.Join(dir, fileName), report: report, lock: lock}
	err = r.open()
	switch {
	case errors.Is(err, errUnusable):
		report("the copy of the leader's state cannot be used; waiting for another", err)
		r.unusable = err
	case err != nil:
		return nil, errors.Join(err, lock.Close())
	}
	return r, nil
}

// open verifies and opens the file, if there is one.
func (r *Replica) open() error {
	switch _, err := os.Stat(r.path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("state directory: %w", err)
	}
	if err := verify(r.path); err != nil {
		return err
	}
	db, err := openFile(r.path)
	if err != nil {
		return err
	}
	var info Info
	err = guarded(func() error {
		err := db.View(func(tx *bolt.Tx) error {
			if tx.Bucket(metaBucket) == nil {
				return nil // nothing was committed
			}
			return getJSON(tx.Bucket(metaBucket), metaKey, &info)
		})
		if err == nil {
			db, err = compact(db, r.path, compactFrom, compactPart)
		}
		return err
	})
	if err != nil {
		return errors.Join(err, db.Close())
	}
	r.db = db
	r.info.Store(&info)
	return nil
}

// Info returns what the copy holds about the leader's run. It is the zero value for an empty one.
func (r *Replica) Info() Info {
	if info := r.info.Load(); info != nil {
		return *info
	}
	return Info{}
}

// BeginCopy begins a copy that replaces the one in the directory once it is whole.
func (r *Replica) BeginCopy() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.dropCopy(); err != nil {
		return err
	}
	db, err := openFile(r.path + copySuffix)
	if err != nil {
		return err
	}
	db.NoSync = true // a file that is not complete is never opened
	r.next = db
	return nil
}

// dropCopy removes a copy that is not whole.
func (r *Replica) dropCopy() error {
	if r.next != nil {
		_ = r.next.Close() // it is removed
		r.next = nil
	}
	if err := os.Remove(r.path + copySuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Apply writes changes in one transaction: to the copy that was begun, or to the one in the directory. stamp is of their last
// commit, nil while they are ranges.
func (r *Replica) Apply(changes []Changes) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	db, info := r.db, Info{}
	if r.next != nil {
		db = r.next
	}
	if db == nil {
		return errors.New("changes without a copy")
	}
	if r.next == nil {
		if err := r.checkRoom(changes); err != nil {
			return err
		}
	}
	err := guarded(func() error {
		return db.Update(func(tx *bolt.Tx) error {
			for _, c := range changes {
				if err := c.apply(tx); err != nil {
					return err
				}
			}
			if r.next != nil {
				return nil
			}
			return getJSON(tx.Bucket(metaBucket), metaKey, &info)
		})
	})
	if err == nil && r.next == nil {
		r.info.Store(&info)
		err = guarded(func() (err error) {
			r.db, err = compact(db, r.path, compactFollowingFrom, compactFollowing)
			return err
		})
	}
	if err != nil {
		r.failed = r.failed || r.next == nil
		return fmt.Errorf("write the copy of the leader's state: %w", err)
	}
	return nil
}

// checkRoom returns an error if no second copy would fit beside the one in the directory once changes are written to it. A file never
// shrinks: one that filled the disk would leave no room for any copy to come, however small the state is then.
func (r *Replica) checkRoom(changes []Changes) error {
	var grows int64
	for _, c := range changes {
		grows += 2 * int64(len(c)) // pages that are half full
	}
	size := fileSize(r.path)
	if left, ok := room(filepath.Dir(r.path)); ok && left < size+2*grows {
		return fmt.Errorf("the copy of the leader's state takes %d bytes, changes add up to %d, and the disk has %d left, which another one beside it needs", size, grows, left)
	}
	return nil
}

// EndCopy makes the copy that was begun the one in the directory. The former file is set aside if it holds what is waiting
// nowhere else.
func (r *Replica) EndCopy() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		return errors.New("no copy was begun")
	}
	var info Info
	err := guarded(func() error {
		return r.next.View(func(tx *bolt.Tx) error {
			for _, name := range [][]byte{metaBucket, watchesBucket, logsBucket} {
				if tx.Bucket(name) == nil {
					return fmt.Errorf("%w: it has no %s", errChanges, name)
				}
			}
			return getJSON(tx.Bucket(metaBucket), metaKey, &info)
		})
	})
	switch {
	case err != nil:
		return err
	case info.Format > format:
		return fmt.Errorf("the leader's state has format %d, and this version of kubeferry reads format %d only", info.Format, format)
	case info.Replica == nil || info.Replica.Lineage == "":
		return fmt.Errorf("%w: no stamp", errChanges)
	}
	if err := r.next.Sync(); err != nil {
		return fmt.Errorf("write the copy of the leader's state: %w", err)
	}
	r.next.NoSync = false
	if err := r.makeRoom(&info); err != nil {
		return err
	}
	if err := os.Rename(r.path+copySuffix, r.path); err != nil {
		return err
	}
	if r.db != nil {
		_ = r.db.Close() // nothing was written to it, and its file is gone
	}
	r.db, r.next, r.unusable, r.failed = r.next, nil, nil, false
	r.info.Store(&info)
	_ = durable.SyncDir(filepath.Dir(r.path)) // else a loss of power may bring the old file back, which is as good
	return nil
}

// makeRoom sets the file in the directory aside if it holds undelivered entries or dead letters that the new one may lack.
func (r *Replica) makeRoom(next *Info) error {
	if r.unusable != nil {
		return r.setAside("it cannot be used; "+whatIsLeft(r.path)+" can be read: see `kubeferry state recover`", r.unusable)
	}
	if info := r.Info(); r.db == nil || info.Format == 0 || info.Replica != nil && next.Replica.Includes(*info.Replica) {
		return nil
	}
	waiting, letters, err := r.waiting()
	if err != nil || waiting+letters == 0 {
		return err
	}
	return r.setAside("another replica leads, and did not have its last commits; "+left(waiting, letters)+" are in it", nil)
}

// setAside leaves the replica empty: if the copy cannot be renamed, another one may be.
func (r *Replica) setAside(reason string, cause error) error {
	if err := setAside(r.path, reason, cause, r.report); err != nil {
		return err
	}
	if r.db != nil {
		_ = r.db.Close() // nothing was written to it since
	}
	r.db, r.unusable = nil, nil
	r.info.Store(nil)
	return nil
}

func (r *Replica) waiting() (entries, letters uint64, err error) {
	err = r.db.View(func(tx *bolt.Tx) error {
		logs, meta := tx.Bucket(logsBucket), tx.Bucket(metaBucket)
		if logs == nil {
			return nil
		}
		var size delta.LogSize
		if meta.Get(deadLettersKey) != nil {
			if err := getJSON(meta, deadLettersKey, &size); err != nil {
				return err
			}
		}
		letters = size.Entries
		return logs.ForEachBucket(func(name []byte) error {
			err := getJSON(logs, sizeKey(name), &size)
			entries += size.Entries
			return err
		})
	})
	return entries, letters, err
}

// Lead makes the copy the store of a leader, and ends the replica, but for Info. The file is not read again, which may take minutes: it was
// verified when it was opened, or written by this process since. One that cannot be used is opened as [Open] does, but not compacted.
func (r *Replica) Lead() (*Store, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err, lock := r.dropCopy(), r.lock
	r.lock = nil
	s := &Store{db: r.db, path: r.path, lock: lock, sizes: map[string]delta.LogSize{}}
	if r.db != nil && !r.failed && guarded(func() error { return s.load(Info{}) }) == nil && err == nil {
		r.db = nil
		return s, nil
	}
	if r.db != nil {
		err = errors.Join(err, r.db.Close())
		r.db = nil
	}
	if err == nil {
		s, err = openLocked(r.path, false, r.report)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s.lock = lock
	return s, nil
}

// Close lets go of the directory, unless Lead was called, and drops a copy that is not whole.
func (r *Replica) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.dropCopy()
	if r.db != nil {
		err = errors.Join(err, r.db.Close())
		r.db = nil
	}
	if r.lock != nil {
		err = errors.Join(err, r.lock.Close())
		r.lock = nil
	}
	return err
}

func getJSON(b *bolt.Bucket, key []byte, value any) error {
	if b == nil {
		return fmt.Errorf("%w: no %s", errChanges, key)
	}
	return json.Unmarshal(b.Get(key), value)
}
