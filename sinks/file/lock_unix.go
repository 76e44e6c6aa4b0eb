//go:build unix && !solaris && !aix

package file

import (
	"os"
	"syscall"
)

// lock waits until no other process has locked a file, and locks it, through the descriptor that writes: SMB refuses writes through another.
func lock(file *os.File) { setLock(file, syscall.LOCK_EX) }

func unlock(file *os.File) { setLock(file, syscall.LOCK_UN) }

func setLock(file *os.File, how int) {
	for syscall.Flock(int(file.Fd()), how) == syscall.EINTR { //nolint:gosec // a descriptor fits
	}
}
