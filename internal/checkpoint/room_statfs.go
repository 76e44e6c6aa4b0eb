//go:build linux || darwin

package checkpoint

import "syscall"

// room returns how many bytes the disk of a directory has left; false if that is not known.
func room(dir string) (bytes int64, ok bool) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return 0, false
	}
	return int64(disk.Bavail) * int64(disk.Bsize), true //nolint:gosec,unconvert // the types differ between systems
}
