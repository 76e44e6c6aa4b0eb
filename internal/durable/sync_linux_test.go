package durable

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kubeferry/kubeferry/internal/errnotest"
)

// The directory is synced, behind the new name in it: the errors of opening and of syncing it are returned.
func TestDirectoryIsSynced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	toRead := errnotest.Call{Number: syscall.SYS_OPENAT, Argument: 2, Mask: syscall.O_ACCMODE, Value: syscall.O_RDONLY}
	var err error
	errnotest.Fail(t, toRead, syscall.EIO, func() { err = WriteFile(path, []byte("content")) })
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("the directory was not opened: %v", err)
	}
	errnotest.Fail(t, errnotest.Call{Number: syscall.SYS_FSYNC}, syscall.EIO, func() { err = SyncDir(filepath.Dir(path)) })
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("the directory was not synced: %v", err)
	}
}
