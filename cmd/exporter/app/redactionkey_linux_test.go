package app

import (
	"syscall"
	"testing"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/errnotest"
)

// A key whose name is not on the disk is not used either: here the state directory cannot be opened to sync it, which does not find a key before either. Package
// durable has a test that what is opened is synced.
func TestNameOfTheRedactionKeyIsSynced(t *testing.T) {
	toRead := errnotest.Call{Number: syscall.SYS_OPENAT, Argument: 2, Mask: syscall.O_ACCMODE, Value: syscall.O_RDONLY}
	dir := t.TempDir()
	errnotest.Fail(t, toRead, syscall.ENOENT, func() {
		if key, err := redactionKey(config.Redaction{}, dir, nil); err == nil {
			t.Errorf("got %q without an error", key)
		}
	})
}
