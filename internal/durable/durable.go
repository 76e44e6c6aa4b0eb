// Package durable writes files that are complete after a crash or a loss of power.
package durable

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile replaces the content of a file: after a crash it holds the old content or the new. Only the owner may read it. Two calls for
// one path must not run at the same time.
func WriteFile(path string, content []byte) error {
	temporary := path + ".new" // a process that is killed may leave one
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names of new and renamed files in a directory durable. It returns no error where the file system
// cannot sync directories.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	err = dir.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	return errors.Join(err, dir.Close())
}
