package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// errUnusable marks a file that holds something else than a state we can read.
var errUnusable = errors.New("unusable state file")

// verify reads every page of the file that is in use. bbolt does so as well when it opens a file for writing, but in a
// goroutine of its own, where what it finds ends the process.
func verify(path string) (err error) {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // a new one
	case err == nil && info.Size() == 0: // begin leaves none like that
		return fmt.Errorf("%w: cut short: it is empty", errUnusable)
	}
	// A page that makes no sense is a panic in bbolt. One beyond the end of a file that was cut short is a fault, which
	// this makes a panic too.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: damaged: %v", errUnusable, r)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%s: %w", path, ErrLocked)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("open %s: %w", path, err)
	case err != nil:
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	defer db.Close()
	info, err := os.Stat(path) // only now: the process that had the lock may have written until it released it
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return db.View(func(tx *bolt.Tx) error {
		if size := tx.Size(); info.Size() < size {
			return fmt.Errorf("%w: cut short: %d bytes of %d", errUnusable, info.Size(), size)
		}
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			switch {
			case bytes.Equal(name, watchesBucket):
				return b.ForEachBucket(func(id []byte) error { return checkWatch(b.Bucket(id)) })
			case bytes.Equal(name, logsBucket):
				return b.ForEachBucket(func(pipeline []byte) error { return checkLog(b.Bucket(pipeline), b.Get(sizeKey(pipeline))) })
			default:
				return b.ForEach(func(_, _ []byte) error { return nil })
			}
		})
	})
}

// checkWatch reads all that is kept of a watch: a start with half of it would send deletions that never happened.
func checkWatch(watch *bolt.Bucket) error {
	known := watch.Bucket(knownBucket)
	if known == nil || !json.Valid(watch.Get(metaKey)) {
		return fmt.Errorf("%w: damaged: a watch without its known set or its position", errUnusable)
	}
	err := known.ForEach(func(key, value []byte) error {
		if _, err := decodeKnown(key, value); err != nil {
			return fmt.Errorf("%w: damaged: %w", errUnusable, err)
		}
		return nil
	})
	if previous := watch.Bucket(previousBucket); err == nil && previous != nil {
		return previous.ForEach(func(_, _ []byte) error { return nil })
	}
	return err
}

// checkLog compares a log with its stored size: a number for the next entry that is too small would have new
// entries replace old ones.
func checkLog(log *bolt.Bucket, text []byte) error {
	var size LogSize
	if err := json.Unmarshal(text, &size); err != nil {
		return fmt.Errorf("%w: damaged: the size of a log: %w", errUnusable, err)
	}
	entries, next := uint64(0), uint64(0)
	err := log.ForEach(func(key, _ []byte) error {
		if len(key) != 8 {
			return fmt.Errorf("%w: damaged: an entry of a log without a number", errUnusable)
		}
		entries, next = entries+1, binary.BigEndian.Uint64(key)+1
		return nil
	})
	if err == nil && (size.Entries != entries || size.Next < next || size.Bytes < 0) {
		err = fmt.Errorf("%w: damaged: a log of %d entries up to %d is said to have %d up to %d", errUnusable, entries, next, size.Entries, size.Next)
	}
	return err
}
