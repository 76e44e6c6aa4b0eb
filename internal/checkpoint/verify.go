package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// errUnusable marks a file that is certainly damaged. What may pass, and what another version of this program may read, is
// some other error: the file is not touched then.
var errUnusable = errors.New("unusable state file")

// leftAlone is what to do about a file that cannot be opened and may be whole.
const leftAlone = "the file is left as it is: start again once the cause is gone, or move the file away to begin without it; what waits in it is not delivered then"

// verify reads every page of the file that is in use. bbolt does so as well when it opens a file for writing, but in a
// goroutine of its own, where what it finds ends the process.
func verify(path string) (err error) {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // a new one
	case err == nil && info.Mode().IsRegular() && info.Size() < smallest: // begin leaves none like that
		return fmt.Errorf("%w: cut short: %d bytes are left", errUnusable, info.Size())
	}
	if err := readMeta(path); err != nil { // bbolt takes what cannot be read for something else than a database
		return fmt.Errorf("open %s: %w; %s", path, err, leftAlone)
	}
	var db *bolt.DB
	// A page that makes no sense is a panic in bbolt. One beyond the end of a file that was cut short is a fault, which
	// this makes a panic too.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = unreadable(r, db)
		}
	}()
	db, err = bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%s: %w", path, ErrLocked)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum):
		return fmt.Errorf("%w: %w", errUnusable, err)
	case err != nil:
		return fmt.Errorf("open %s: %w; %s", path, err, leftAlone)
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
		if meta := tx.Bucket(metaBucket); meta != nil { // else it is new
			if _, err := readInfo(meta, path); err != nil {
				return err // another format may have what looks like damage below
			}
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

func readMeta(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.ReadFull(file, make([]byte, smallest))
	return err
}

// smallest is the size of bbolt's two meta pages, without which there is no file.
const smallest = 2 * 4096

// unreadable classifies a panic while the file was read. A fault inside the file is an error of the disk, or of the volume
// behind it, and may pass; any other means that pages make no sense.
func unreadable(panicked any, db *bolt.DB) error {
	if fault, ok := panicked.(interface{ Addr() uintptr }); ok && db != nil {
		mapped := db.Info().Data
		if at := fault.Addr(); mapped <= at && at < mapped+uintptr(fileSize(db.Path())) {
			return fmt.Errorf("read %s: %v; %s", db.Path(), panicked, leftAlone)
		}
	}
	return fmt.Errorf("%w: damaged: %v", errUnusable, panicked)
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
	var size delta.LogSize
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
