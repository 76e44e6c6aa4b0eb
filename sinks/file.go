package sinks

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"
)

// SecretFile is a file whose content may be replaced while kubeferry runs, as mounted Secrets are. It is read
// again when its time or size changes. The zero value is no file.
type SecretFile struct {
	path string

	mu      sync.Mutex // guards what follows
	modTime time.Time
	size    int64
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
	if f.content != nil && info.ModTime().Equal(f.modTime) && info.Size() == f.size {
		return f.content, false, nil
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, false, err
	}
	data = bytes.TrimRight(data, "\r\n")
	if len(data) == 0 {
		return nil, false, fmt.Errorf("read %s: the file is empty", f.path)
	}
	f.content, f.modTime, f.size = data, info.ModTime(), info.Size()
	return data, true, nil
}
