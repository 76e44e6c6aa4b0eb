package sinks

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"
)

// racy is the age up to which a file's time proves nothing: file systems stamp by a clock that may stand still for
// some milliseconds (or 2 s, FAT), so that two contents of one size can look the same.
const racy = 3 * time.Second

// SecretFile is a file whose content may be replaced while kubeferry runs, as mounted Secrets are. It is read
// again when it is another file, when its time or size changes, and always while it is young. The zero value is no
// file.
type SecretFile struct {
	path string

	mu      sync.Mutex // guards what follows
	info    os.FileInfo
	settled bool // the file was older than racy when it was read
	content []byte
}

// NewSecretFile names a file; nothing is read yet.
func NewSecretFile(path string) *SecretFile { return &SecretFile{path: path} }

// Read returns the file's present content without trailing line breaks, and whether it changed since the last
// call. The slice must not be modified. If the file vanished meanwhile (a rotation under way), the error says so.
func (f *SecretFile) Read() (content []byte, changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, false, err
	}
	if f.settled && info.ModTime().Equal(f.info.ModTime()) && info.Size() == f.info.Size() && os.SameFile(info, f.info) {
		return f.content, false, nil
	}
	settled := time.Since(info.ModTime()) > racy
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, false, err
	}
	data = bytes.TrimRight(data, "\r\n")
	if len(data) == 0 {
		return nil, false, fmt.Errorf("read %s: the file is empty", f.path)
	}
	f.info, f.settled = info, settled
	if bytes.Equal(data, f.content) {
		return f.content, false, nil
	}
	f.content = data
	return data, true, nil
}
