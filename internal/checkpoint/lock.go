package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

const (
	lockName = "kubeferry.lock"
	// lockTimeout is how long to wait for another process to let go of the directory, as at a rollout.
	lockTimeout = 3 * time.Second
)

// ErrLocked means that another process uses the state directory.
var ErrLocked = errors.New("another process uses the state directory: run one replica with strategy Recreate, and give each kubeferry a directory of its own")

// lockDir makes a state directory, if there is none, and locks it until the lock is closed. bbolt locks the file that it has open, which does not do:
// while a start reads, compacts or sets aside that file, another may take its place, and whoever waits for the lock would get
// that of the old one.
func lockDir(dir string) (*flock.Flock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	path := filepath.Join(dir, lockName)
	lock := flock.New(path, flock.SetPermissions(0o600))
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(20 * time.Millisecond) {
		locked, err := lock.TryLock()
		switch {
		case err != nil:
			return nil, fmt.Errorf("lock %s: %w; %s", path, err, leftAlone)
		case locked:
			return lock, nil
		case time.Now().After(deadline):
			return nil, fmt.Errorf("%s: %w", path, ErrLocked)
		}
	}
}
