package sinks

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// racy is the age up to which a file's time proves nothing: file systems stamp by a clock that may stand still for
// some milliseconds (or 2 s, FAT), so that two contents of one size can look the same.
const racy = 3 * time.Second

// SecretFile is a file whose content may be replaced while kubeferry runs, as mounted Secrets are. Read reads it again
// when it is another file, when its time or size changed, and always while it is young.
type SecretFile struct {
	key, path string

	mu      sync.Mutex // guards what follows
	info    os.FileInfo
	settled bool // the file was older than racy when it was read
	content []byte
}

// NewSecretFile names a file, and the configuration key that it comes from. It reads nothing yet.
func NewSecretFile(key, path string) *SecretFile { return &SecretFile{key: key, path: path} }

// Read returns the file's present content without trailing line breaks. The slice must not be modified. An error is a
// *[FileError], also while the file is missing for a moment because it is being replaced.
func (f *SecretFile) Read() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refresh(); err != nil {
		return nil, &FileError{Key: f.key, Path: f.path, Err: err}
	}
	return f.content, nil
}

func (f *SecretFile) refresh() error {
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if f.settled && info.ModTime().Equal(f.info.ModTime()) && info.Size() == f.info.Size() && os.SameFile(info, f.info) {
		return nil
	}
	settled := time.Since(info.ModTime()) > racy
	data, err := os.ReadFile(f.path)
	if err != nil {
		return err
	}
	data = bytes.TrimRight(data, "\r\n")
	if len(data) == 0 {
		return errors.New("the file is empty")
	}
	f.info, f.settled, f.content = info, settled, data
	return nil
}

// FileError reports that a file named in the configuration cannot be used: the peer is not at fault.
type FileError struct {
	// Key of the configuration that names the file at Path.
	Key, Path string
	Err       error
}

func (e *FileError) Error() string {
	return fmt.Sprintf("%s %s cannot be used: %v", e.Key, e.Path, e.Err)
}
func (e *FileError) Unwrap() error { return e.Err }
