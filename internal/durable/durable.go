// Package durable writes files that are complete after a crash or a loss of power.
package durable

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Unfinished is the suffix of the file that [Write] writes first. A process that is killed may leave one; the next Write
// replaces it.
const Unfinished = ".new"

// WriteFile is [Write] of what is in memory.
func WriteFile(path string, content []byte) error {
	return Write(path, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// Write replaces the content of a file by what the function writes: after a crash, or an error of the function, it holds the old
// content. Only the owner may read it. Two calls for one path must not run at the same time.
func Write(path string, write func(io.Writer) error) error {
	temporary := path + Unfinished
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(file)
	if err := errors.Join(write(buffered), buffered.Flush(), file.Sync(), file.Close()); err != nil {
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
