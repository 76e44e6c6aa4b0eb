package checkpoint

import (
	"errors"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/errnotest"
)

// After a commit that finds the disk full, bbolt reads all pages of the file. So the next ones wait for room, or for a while.
func TestCommitsWaitForRoom(t *testing.T) {
	s, err := Open(t.TempDir(), func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	commit := func(position string) error {
		return s.Commit(&Commit{Watches: []delta.WatchChange{{Watch: "w", Meta: []byte(position)}}, Logs: []delta.LogChange{{Pipeline: "p"}}})
	}
	if err := commit(`{"position":"1"}`); err != nil {
		t.Fatal(err)
	}
	errnotest.Fail(t, errnotest.Call{Number: syscall.SYS_PWRITE64}, syscall.ENOSPC, func() { err = commit(`{"position":"2"}`) })
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	s.full.room = math.MaxInt64 - fullDiskRoom // whatever else is on this disk
	if err := commit(`{"position":"2"}`); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("with no more room: %v", err)
	}
	if err := s.Commit(&Commit{DropLogs: []string{"p"}}); err != nil || len(s.Logs()) != 0 {
		t.Errorf("a log is dropped: %v, %v", err, s.Logs())
	}
	for name, again := range map[string]fullDisk{"more room": {at: time.Now()}, "later": {at: time.Now().Add(-fullDiskPause), room: math.MaxInt64 - fullDiskRoom}} {
		again.err = syscall.ENOSPC
		s.full = &again
		if err := commit(`{"position":"2"}`); err != nil || s.full != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
