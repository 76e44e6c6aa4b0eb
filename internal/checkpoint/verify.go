package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// errUnusable marks a file that is certainly damaged. What may pass, and what another version of this program may read, is
// some other error: the file is not touched then.
var errUnusable = errors.New("unusable state file")

// leftAlone is what to do about a file that cannot be opened and may be whole.
const leftAlone = "the file is left as it is: start again once the cause is gone, or move the file away to begin without it; what waits in it is not delivered then"

// smallest is the size of bbolt's two meta pages, without which there is no file.
const smallest = 2 * 4096

// verify reads every page of the file that is in use, before bbolt does.
func verify(path string) (err error) {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // a new one
	case err == nil && info.Mode().IsRegular() && info.Size() < smallest: // begin leaves none like that
		return fmt.Errorf("%w: cut short: %d bytes are left", errUnusable, info.Size())
	}
	if err := readMeta(path); err != nil {
		return fmt.Errorf("open %s: %w; %s", path, err, leftAlone)
	}
	return readPages(path, func(err error) error { return err }, func(f *pageFile, root storedBucket) error {
		top, err := f.read(root, true, func(_, _ []byte) error { return nil })
		if err != nil {
			return err
		}
		for _, b := range top {
			if b.name == string(metaBucket) {
				if err := checkMeta(f, b, path); err != nil {
					return err // another format may have what looks like damage below
				}
			}
		}
		for _, b := range top {
			switch b.name {
			case string(metaBucket):
			case string(watchesBucket):
				err = checkWatches(f, b)
			case string(logsBucket):
				err = checkLogs(f, b)
			default:
				_, err = f.read(b, false, func(_, _ []byte) error { return nil })
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// readMeta reads what bbolt reads first, in the same way: bbolt does not return the error of that.
func readMeta(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.ReadAt(make([]byte, smallest), 0)
	return err
}

// checkMeta returns an error, too, if the file has another format.
func checkMeta(f *pageFile, meta storedBucket, path string) error {
	var text []byte
	_, err := f.read(meta, true, func(key, value []byte) error {
		if string(key) == string(metaKey) {
			text = append(text, value...)
		}
		return nil
	})
	if err == nil {
		_, err = readInfo(text, path)
	}
	return err
}

// checkWatches reads all that is kept of the watches: a start with half of it would send deletions that never happened.
func checkWatches(f *pageFile, watches storedBucket) error {
	all, err := f.read(watches, false, func(_, _ []byte) error { return nil })
	if err != nil {
		return err
	}
	for _, watch := range all {
		described, known := false, false
		inside, err := f.read(watch, true, func(key, value []byte) error {
			described = described || string(key) == string(metaKey) && json.Valid(value)
			return nil
		})
		if err != nil {
			return err
		}
		for _, b := range inside {
			switch b.name {
			case string(knownBucket):
				known = true
				_, err = f.read(b, true, func(key, value []byte) error {
					if _, err := decodeKnown(key, value); err != nil {
						return fmt.Errorf("%w: damaged: %w", errUnusable, err)
					}
					return nil
				})
			default:
				_, err = f.read(b, false, func(_, _ []byte) error { return nil })
			}
			if err != nil {
				return err
			}
		}
		if !described || !known {
			return fmt.Errorf("%w: damaged: a watch without its known set or its position", errUnusable)
		}
	}
	return nil
}

// checkLogs compares the logs with their stored sizes: a number for the next entry that is too small would have new entries
// replace old ones.
func checkLogs(f *pageFile, logs storedBucket) error {
	sizes := map[string][]byte{}
	all, err := f.read(logs, true, func(key, value []byte) error {
		sizes[string(key)] = append([]byte{}, value...)
		return nil
	})
	if err != nil {
		return err
	}
	for _, log := range all {
		var size delta.LogSize
		if err := json.Unmarshal(sizes[string(sizeKey([]byte(log.name)))], &size); err != nil {
			return fmt.Errorf("%w: damaged: the size of a log: %w", errUnusable, err)
		}
		entries, next := uint64(0), uint64(0)
		_, err := f.read(log, false, func(key, _ []byte) error {
			if len(key) != 8 {
				return fmt.Errorf("%w: damaged: an entry of a log without a number", errUnusable)
			}
			entries, next = entries+1, binary.BigEndian.Uint64(key)+1
			return nil
		})
		if err != nil {
			return err
		}
		if size.Entries != entries || size.Next < next || size.Bytes < 0 {
			return fmt.Errorf("%w: damaged: a log of %d entries up to %d is said to have %d up to %d", errUnusable, entries, next, size.Entries, size.Next)
		}
	}
	return nil
}
