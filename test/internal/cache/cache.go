// Package cache keeps what is expensive to obtain (built or downloaded programs) in the user's cache directory, outside
// of the source tree, once for all test packages and checkouts of this machine.
package cache

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// Dir returns the directory <user cache>/kubeferry/name. If it does not exist, fill is called with an empty directory
// that takes its place when fill succeeds: a directory that exists is complete, whatever was interrupted.
//
// Processes that want the same name wait for each other, so that parallel test packages build once. name should carry
// everything that the content depends on, such as versions and platform.
func Dir(ctx context.Context, log io.Writer, name string, fill func(ctx context.Context, dir string) error) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	return dirIn(ctx, log, filepath.Join(base, "kubeferry"), name, fill)
}

// Find returns the directory <user cache>/kubeferry/name, which [Dir] has filled before.
func Find(name string) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	dir := filepath.Join(base, "kubeferry", filepath.FromSlash(name))
	_, err = os.Stat(dir)
	return dir, err
}

func dirIn(ctx context.Context, log io.Writer, base, name string, fill func(ctx context.Context, dir string) error) (dir string, err error) {
	dir = filepath.Join(base, filepath.FromSlash(name))
	if exists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, log, dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(dir) {
		return dir, nil // another process was faster
	}

	// Beside its destination, because a rename is atomic only within a file system.
	temp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".tmp-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	if err := fill(ctx, temp); err != nil {
		return "", err
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(temp, dir); err != nil {
		return "", fmt.Errorf("put into the cache: %w", err)
	}
	return dir, nil
}

// lock takes the lock of dir, which the system releases if this process dies.
func lock(ctx context.Context, log io.Writer, dir string) (unlock func(), err error) {
	l := flock.New(dir + ".lock")
	locked, err := l.TryLock()
	if err == nil && !locked {
		fmt.Fprintf(log, "waiting for another process that prepares %s\n", filepath.Base(dir))
		_, err = l.TryLockContext(ctx, 200*time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", filepath.Base(dir), err)
	}
	return func() { _ = l.Unlock() }, nil
}

func exists(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}
