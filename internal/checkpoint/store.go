package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/delta"
)

const (
	fileName = "kubeferry.db"
	// format is raised when an older program could not read the file.
	format = 1
)

// The buckets of the file, and metaKey in metaBucket; see the package's comment.
const (
	metaBucket        = "meta"
	metaKey           = "meta"
	watchesBucket     = "watches"
	logsBucket        = "logs"
	deadLettersBucket = "deadLetters"
	knownPrefix       = "known/"
	previousPrefix    = "previous/"
	logPrefix         = "log/"
)

// Store is an open state directory. Reads may run beside one Commit.
type Store struct {
	db   *bolt.DB
	path string
	lock *flock.Flock // of the directory
	info Info
	// sizes are the logs' as of the last commit, by pipeline.
	sizes       map[string]delta.LogSize
	deadLetters delta.LogSize
	// tap is called with each commit; see Lead.
	tap func(*Stamp, []Changes)
	// full is set while the last commit found the disk full.
	full *fullDisk
}

// Info is what the file holds about its last run.
type Info struct {
	Format int `json:"format"`
	// ClusterUID is the uid of the namespace kube-system; empty until Bind.
	ClusterUID string `json:"clusterUID"`
	// Offset is what is added to resource versions to make sequences; 0 until the first commit.
	Offset uint64 `json:"offset,omitempty"`
	// Clean is set if the last run ended with a last commit. It is false while one runs.
	Clean bool `json:"clean"`
	// Lost is set until the first commit of a file that took the place of another: what that one held is lost.
	Lost bool `json:"lost,omitempty"`
	// Replica is set once replicas share the state.
	Replica *Stamp `json:"replica,omitempty"`
}

// Open opens the state directory. If another process has it, the error is [ErrLocked], after 3 s. A file that is certainly damaged
// is set aside: report gets the reason, and the store begins empty. A file of another format, or unreadable for now, is an error, and is not touched.
func Open(dir string, report func(message string, err error)) (*Store, error) {
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s, err := openLocked(filepath.Join(dir, fileName), report)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s.lock = lock
	return s, nil
}

func openLocked(path string, report func(message string, err error)) (*Store, error) {
	s, err := open(path, Info{})
	if !errors.Is(err, errUnusable) {
		return s, err
	}
	reason := fmt.Sprintf("it cannot be used; %s can be read: see `kubeferry state recover`", whatIsLeft(path))
	if err := setAside(path, reason, err, report); err != nil {
		return nil, err
	}
	return open(path, Info{})
}

// Renew closes the store, sets its file aside for the reason given, and opens an empty one. What the file held is lost.
func (s *Store) Renew(reason string, info Info, report func(message string, err error)) (*Store, error) {
	err := s.db.Close()
	if err == nil {
		err = setAside(s.path, reason+"; "+counted(s.waiting())+" are in it", nil, report)
	}
	var renewed *Store
	if err == nil {
		renewed, err = open(s.path, info)
	}
	if err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	renewed.lock = s.lock
	return renewed, nil
}

// waiting returns how many undelivered entries and dead letters there are.
func (s *Store) waiting() (entries, letters uint64) {
	for _, log := range s.sizes {
		entries += log.Entries
	}
	return entries, s.deadLetters.Entries
}

// open opens the file. A new one begins with fresh.
func open(path string, fresh Info) (s *Store, err error) {
	if err := verify(path); err != nil {
		return nil, err
	}
	_, missing := os.Stat(path)
	db, err := openFile(path)
	if err != nil {
		if errors.Is(missing, fs.ErrNotExist) {
			_ = os.Remove(path) // there was no room for the first pages: it would count as one that was cut short
		}
		return nil, err
	}
	s = &Store{db: db, path: path}
	err = guarded(func() (err error) {
		if err = s.load(fresh); err == nil {
			s.db, err = compact(db, path, compactFrom, compactPart)
		}
		return err
	})
	if err != nil {
		_ = db.Close() // nothing was written
		return nil, err
	}
	return s, nil
}

// openFile opens a file for writing.
func openFile(path string) (*bolt.DB, error) {
	return openBolt(path, &bolt.Options{NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
}

// load reads what the last run left. A new file begins with fresh.
func (s *Store) load(fresh Info) error {
	if err := s.read(); err != nil || s.info.Format != 0 {
		return err
	}
	s.info = fresh
	s.info.Format, s.info.Clean, s.info.Lost = format, true, othersAside(s.path)
	return s.db.Update(func(tx *bolt.Tx) error {
		for _, name := range []string{metaBucket, watchesBucket, logsBucket} {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		return putJSON(tx.Bucket([]byte(metaBucket)), metaKey, s.info)
	})
}

// read reads what the file holds beside watches and entries: nothing if it is new.
func (s *Store) read() error {
	s.sizes = map[string]delta.LogSize{}
	return s.db.View(func(tx *bolt.Tx) (err error) {
		meta := bucketOf(tx, metaBucket)
		if meta == nil {
			return nil // new
		}
		if s.info, err = readInfo(meta.Get([]byte(metaKey))); err != nil {
			return err
		}
		logs := bucketOf(tx, logsBucket)
		if logs == nil || bucketOf(tx, watchesBucket) == nil {
			return fmt.Errorf("%w: damaged: no watches or no logs", errUnusable)
		}
		if text := meta.Get([]byte(deadLettersBucket)); text != nil {
			if err := json.Unmarshal(text, &s.deadLetters); err != nil {
				return fmt.Errorf("%w: %w", errUnusable, err)
			}
		}
		return logs.ForEach(func(name, text []byte) error {
			var size delta.LogSize
			if err := json.Unmarshal(text, &size); err != nil {
				return fmt.Errorf("%w: %w", errUnusable, err)
			}
			s.sizes[string(name)] = size
			return nil
		})
	})
}

// readInfo returns an error, too, if the file has another format.
func readInfo(text []byte) (info Info, err error) {
	if err := json.Unmarshal(text, &info); err != nil {
		return info, fmt.Errorf("%w: %w", errUnusable, err)
	}
	if info.Format != format {
		return info, fmt.Errorf("it has format %d, and this version of kubeferry reads format %d only", info.Format, format)
	}
	return info, nil
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// bucketOf returns nil if there is no bucket of that name.
func bucketOf(tx *bolt.Tx, name string) *bolt.Bucket { return tx.Bucket([]byte(name)) }

func putJSON(b interface{ Put(key, value []byte) error }, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return b.Put([]byte(key), text)
}

// Info returns what the file holds about its last run, or of this one once a commit has changed it.
func (s *Store) Info() Info { return s.info }

// Clean reports whether the last run ended with a last commit.
func (s *Store) Clean() bool { return s.info.Clean }

// Bind sets the cluster that the state belongs to; the first commit writes it.
func (s *Store) Bind(clusterUID string) { s.info.ClusterUID = clusterUID }

// Close closes the file.
func (s *Store) Close() error { return errors.Join(s.db.Close(), s.lock.Close()) }

// Watches calls yield with the id and meta of each watch.
func (s *Store) Watches(yield func(id string, meta []byte) error) error {
	return s.db.View(func(tx *bolt.Tx) error {
		return bucketOf(tx, watchesBucket).ForEach(func(id, meta []byte) error { return yield(string(id), meta) })
	})
}

// Known calls yield with each object of a watch's known set, without what is retained of it.
func (s *Store) Known(id string, yield func(delta.Known)) error {
	return s.db.View(func(tx *bolt.Tx) error {
		known := bucketOf(tx, knownPrefix+id)
		if known == nil {
			return nil
		}
		return known.ForEach(func(key, value []byte) error {
			k, err := decodeKnown(key, value)
			if err == nil {
				yield(k)
			}
			return err
		})
	})
}

// Previous returns what is retained of an object of a watch, compressed; nil for nothing.
func (s *Store) Previous(id, namespace, name string) (packed []byte, err error) {
	key := appendKnownKey(nil, &delta.Known{Namespace: namespace, Name: name})
	err = s.db.View(func(tx *bolt.Tx) error {
		if previous := bucketOf(tx, previousPrefix+id); previous != nil {
			packed = bytes.Clone(previous.Get(key))
		}
		return nil
	})
	return packed, err
}

// Logs returns the logs' sizes, by pipeline.
func (s *Store) Logs() map[string]delta.LogSize { return s.sizes }
