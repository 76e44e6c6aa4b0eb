package checkpoint

import (
	"errors"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// fullDiskPause is how long a store waits for room on a full disk before it tries a commit all the same: one that frees pages of the
	// file may need none.
	fullDiskPause = 30 * time.Second
	// fullDiskRoom is how much more room than at the failure makes the store try at once, in bytes.
	fullDiskRoom = 1 << 20
)

// fullDisk is a commit that failed because the disk was full.
type fullDisk struct {
	err  error
	at   time.Time
	room int64 // bytes that the disk had free
}

// newFullDisk returns nil if an error is not that of a full disk.
func newFullDisk(path string, err error) *fullDisk {
	if !errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	free, _ := room(filepath.Dir(path))
	return &fullDisk{err: err, at: time.Now(), room: free}
}

// waits reports whether it is too early for another commit.
func (f *fullDisk) waits(path string) bool {
	if f == nil || time.Since(f.at) >= fullDiskPause {
		return false
	}
	free, ok := room(filepath.Dir(path))
	return !ok || free < f.room+fullDiskRoom
}
