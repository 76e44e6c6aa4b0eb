package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/durable"
)

// copySuffix is of a copy that is not whole. A standby that is killed may leave one; the next copy replaces it.
const copySuffix = ".copy"

// Replica is the state directory of a standby: a copy of the leader's state, and the copy that will take its place.
type Replica struct {
	path   string
	report func(message string, err error)

	info atomic.Pointer[Info] // of store; who stands for election reads it, and does not wait for mu

	mu    sync.Mutex // guards what follows
	store *Store     // nil once Lead was called
	next  *bolt.DB   // the copy that is not whole; nil for none
	// broken is set once store can be neither written nor led with. Another copy may take its place.
	broken error
}

// OpenReplica opens a state directory, as [Open] does, to follow a leader.
func OpenReplica(dir string, report func(message string, err error)) (*Replica, error) {
	s, err := Open(dir, report)
	if err != nil {
		return nil, err
	}
	r := &Replica{path: s.path, report: report, store: s}
	r.setInfo(s.info)
	return r, nil
}

func (r *Replica) setInfo(info Info) { r.info.Store(&info) }

// Info returns what the copy holds about the leader's run.
func (r *Replica) Info() Info { return *r.info.Load() }

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

// Apply writes changes in one transaction: to the copy that was begun, or to the one in the directory.
func (r *Replica) Apply(changes []Changes) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next != nil {
		_, err := apply(r.next, changes)
		return err
	}
	if err := cmp.Or(r.broken, r.checkRoom(changes)); err != nil {
		return err
	}
	info, err := apply(r.store.db, changes)
	if err == nil {
		r.setInfo(info)
		err = guarded(func() (err error) {
			r.store.db, err = compact(r.store.db, r.path, compactFollowingFrom, compactFollowing)
			return err
		})
	}
	if errors.Is(err, errUnusable) {
		r.broken = err
	}
	return err
}

// apply returns what the file holds about the leader's run, if it has that yet.
func apply(db *bolt.DB, changes []Changes) (info Info, err error) {
	err = guarded(func() error {
		return db.Update(func(tx *bolt.Tx) error {
			for _, c := range changes {
				if err := c.apply(tx); err != nil {
					return err
				}
			}
			if meta := bucketOf(tx, metaBucket); meta != nil && meta.Get([]byte(metaKey)) != nil {
				return getJSON(meta, metaKey, &info)
			}
			return nil
		})
	})
	if err != nil {
		return info, fmt.Errorf("write the copy of the leader's state: %w", err)
	}
	return info, nil
}

// checkRoom returns an error if no second copy would fit beside the one in the directory once changes are written to it. A file never
// shrinks: one that filled the disk would leave no room for any copy to come, however small the state is then.
func (r *Replica) checkRoom(changes []Changes) error {
	var grows int64
	for _, c := range changes {
		grows += 2 * int64(len(c)) // pages that are half full
	}
	size := fileSize(r.path)
	if free, ok := room(filepath.Dir(r.path)); ok && free < size+2*grows {
		return fmt.Errorf("the copy of the leader's state takes %d bytes, changes add up to %d, and the disk has %d left, which another one beside it needs", size, grows, free)
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
	copied := &Store{db: r.next, path: r.path, lock: r.store.lock}
	if err := guarded(copied.read); err != nil {
		return fmt.Errorf("the leader's state: %w", err)
	}
	if stamp := copied.info.Replica; stamp == nil || stamp.Lineage == "" {
		return fmt.Errorf("%w: no stamp", errChanges)
	}
	if err := r.next.Sync(); err != nil {
		return fmt.Errorf("write the copy of the leader's state: %w", err)
	}
	r.next.NoSync = false
	if err := r.makeRoom(copied.info.Replica); err != nil {
		return err
	}
	if err := os.Rename(r.path+copySuffix, r.path); err != nil {
		return err
	}
	_ = r.store.db.Close() // nothing was written to it since, and its file is gone
	r.store, r.next, r.broken = copied, nil, nil
	r.setInfo(copied.info)
	_ = durable.SyncDir(filepath.Dir(r.path)) // else a loss of power may bring the old file back, which is as good
	return nil
}

// makeRoom sets the file in the directory aside if it holds undelivered entries or dead letters that the new one may lack. Then the
// replica is an empty one until the new one is there.
func (r *Replica) makeRoom(next *Stamp) error {
	had := r.Info()
	if had.Format == 0 || r.broken == nil && had.Replica != nil && next.Includes(*had.Replica) { // it is set aside already, or not needed
		return nil
	}
	if err := guarded(r.store.read); err != nil {
		return err
	}
	entries, letters := r.store.waiting()
	if entries+letters == 0 {
		return nil
	}
	reason := "another replica leads, and did not have its last commits; " + counted(entries, letters) + " are in it"
	if err := setAside(r.path, reason, nil, r.report); err != nil {
		return err
	}
	r.broken = errors.New("the state file was set aside, and no copy has taken its place")
	r.setInfo(Info{})
	return nil
}

// Lead makes the copy the store of a leader, and ends the replica, but for Info. The file is not read again, which may take minutes: it was
// verified when it was opened, or written by this process since.
func (r *Replica) Lead() (*Store, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.store
	r.store = nil
	err := errors.Join(r.broken, r.dropCopy())
	if err == nil {
		err = guarded(s.read)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lead with the copy of the last leader's state: %w", err), s.Close())
	}
	return s, nil
}

// Close lets go of the directory, unless Lead was called, and drops a copy that is not whole.
func (r *Replica) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.dropCopy()
	if r.store != nil {
		err = errors.Join(err, r.store.Close())
		r.store = nil
	}
	return err
}

func getJSON(b *bolt.Bucket, key string, value any) error {
	if b == nil {
		return fmt.Errorf("%w: no %s", errChanges, key)
	}
	return json.Unmarshal(b.Get([]byte(key)), value)
}
