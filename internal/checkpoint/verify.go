package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"strings"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// errUnusable marks a file that is certainly damaged. What may pass, and what another version of this program may read, is
// some other error: the file is not touched then.
var errUnusable = errors.New("unusable state file")

// leftAlone is what to do about a file that cannot be opened and may be whole.
const leftAlone = "the file is left as it is: start again once the cause is gone, or move the file away to begin without it; what waits in it is not delivered then"

// smallest is the size of bbolt's two meta pages, without which there is no file.
const smallest = 2 * 4096

// verify reads a whole file before bbolt opens it for writing: bbolt then visits all pages on a goroutine of its own, where a page number
// that makes no sense ends the process. [bolt.Tx.Check] is no way around that: it has such a goroutine too. verify checks the format, and
// that what is kept of the watches can be decoded: a start with half of a known set would send deletions that never happened.
func verify(path string) error {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // a new one
	case err == nil && info.Mode().IsRegular() && info.Size() < smallest:
		return fmt.Errorf("%w: cut short: %d bytes are left", errUnusable, info.Size())
	}
	return readFile(path, func(tx *bolt.Tx) error {
		if meta := bucketOf(tx, metaBucket); meta != nil {
			switch _, err := readInfo(meta.Get([]byte(metaKey))); {
			case errors.Is(err, errUnusable):
				return err
			case err != nil: // what follows may look like damage
				return fmt.Errorf("read %s: %w: start the version that wrote it; %s", path, err, leftAlone)
			}
		}
		sizes := bucketOf(tx, logsBucket)
		return walk(tx.Cursor().Bucket(), func(key, value []byte) error {
			name, b := string(key), tx.Bucket(key)
			switch {
			case value != nil || b == nil:
				return fmt.Errorf("%w: damaged: %q is no bucket", errUnusable, name)
			case name == logsBucket:
				return walk(b, func(pipeline, _ []byte) error {
					if bucketOf(tx, logPrefix+string(pipeline)) == nil {
						return fmt.Errorf("%w: damaged: the size of a log that is not there", errUnusable)
					}
					return nil
				})
			case name == watchesBucket:
				return walk(b, func(id, meta []byte) error { return checkWatch(meta, bucketOf(tx, knownPrefix+string(id))) })
			case strings.HasPrefix(name, knownPrefix):
				return walk(b, checkKnown)
			case strings.HasPrefix(name, logPrefix):
				if sizes == nil {
					return fmt.Errorf("%w: damaged: no sizes of the logs", errUnusable)
				}
				return checkLog(b, sizes.Get([]byte(name[len(logPrefix):])))
			default:
				return walk(b, func(_, _ []byte) error { return nil })
			}
		})
	})
}

// walk reads each key and value of a bucket, and calls check with them.
func walk(b *bolt.Bucket, check func(key, value []byte) error) error {
	var last []byte
	return b.ForEach(func(key, value []byte) error {
		if len(key) > bolt.MaxKeySize || last != nil && bytes.Compare(key, last) <= 0 {
			return fmt.Errorf("%w: damaged: a key is too long, or out of order", errUnusable)
		}
		last = key
		_ = crc32.ChecksumIEEE(value) // a length that is too large ends behind the file, which is a fault
		return check(key, value)
	})
}

func checkWatch(meta []byte, known *bolt.Bucket) error {
	if known == nil || !json.Valid(meta) {
		return fmt.Errorf("%w: damaged: a watch without its known set or its position", errUnusable)
	}
	return nil
}

func checkKnown(key, value []byte) error {
	if _, err := decodeKnown(key, value); err != nil {
		return fmt.Errorf("%w: damaged: %w", errUnusable, err)
	}
	return nil
}

// checkLog compares a log with its stored size: a number for the next entry that is too small would have new entries replace old ones.
func checkLog(log *bolt.Bucket, stored []byte) error {
	var size delta.LogSize
	if err := json.Unmarshal(stored, &size); err != nil {
		return fmt.Errorf("%w: damaged: the size of a log: %w", errUnusable, err)
	}
	entries, next := uint64(0), uint64(0)
	err := walk(log, func(key, _ []byte) error {
		if isAttempts(key) {
			return nil
		}
		at, ok := splitKey(key)
		if !ok {
			return fmt.Errorf("%w: damaged: an entry of a log without a number", errUnusable)
		}
		entries, next = entries+1, max(next, at.Seq+1)
		return nil
	})
	if err == nil && (size.Entries != entries || size.Next < next || size.Bytes < 0) {
		err = fmt.Errorf("%w: damaged: a log of %d entries up to %d has the stored size %d up to %d", errUnusable, entries, next, size.Entries, size.Next)
	}
	return err
}

// readFile calls read with a file that no process writes to meanwhile. An error wraps errUnusable if the file is certainly damaged.
func readFile(path string, read func(tx *bolt.Tx) error) error {
	if err := readAll(path); err != nil {
		return fmt.Errorf("read %s: %w; %s", path, err, leftAlone)
	}
	db, err := openBolt(path, &bolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer db.Close()
	return guarded(func() error {
		return db.View(func(tx *bolt.Tx) error {
			if info, err := os.Stat(path); err == nil && info.Size() < tx.Size() {
				return fmt.Errorf("%w: cut short: %d bytes of %d", errUnusable, info.Size(), tx.Size())
			}
			return read(tx)
		})
	})
}

// readAll reads a file without bbolt. An error of the disk is an error here, and may pass. In mapped memory it would be a fault, as one of a
// damaged page number is.
func readAll(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(io.Discard, io.NewSectionReader(file, 0, math.MaxInt64))
	return err
}

// openBolt opens a file with bbolt. The error wraps errUnusable if the file is certainly damaged.
//
// Of a file that it opens for writing, bbolt checks the tree: it visits all pages to find the free ones, and panics if a page is used twice or
// has no valid type, or if keys are out of order.
func openBolt(path string, options *bolt.Options) (db *bolt.DB, err error) {
	var file *os.File
	options.Timeout = lockTimeout
	options.OpenFile = func(name string, flag int, mode fs.FileMode) (_ *os.File, err error) {
		file, err = os.OpenFile(name, flag, mode)
		return file, err
	}
	opened := false
	defer func() {
		if file != nil && !opened {
			_ = file.Close() // releases the lock where bbolt panicked; elsewhere bbolt has closed it
		}
	}()
	err = guarded(func() (err error) {
		db, err = bolt.Open(path, 0o600, options)
		return err
	})
	opened = err == nil
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("open %s: %w", path, ErrLocked)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum):
		return nil, fmt.Errorf("%w: %w", errUnusable, err)
	case err != nil && !errors.Is(err, errUnusable):
		return nil, fmt.Errorf("open %s: %w; %s", path, err, leftAlone)
	}
	return db, err
}

// guarded returns a panic of bbolt, and a fault of mapped memory, as an error that wraps errUnusable.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: damaged: %v", errUnusable, r)
		}
	}()
	return f()
}
