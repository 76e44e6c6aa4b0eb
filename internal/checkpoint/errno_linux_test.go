package checkpoint_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/errnotest"
)

// A start that the system refuses to read or lock the file leaves it as it is, and the next one finds all. The errors are the kernel's, of
// a filter for system calls: a disk that fails, and a volume without locks, cannot be had everywhere.
func TestErrorsOfTheSystemMayPass(t *testing.T) {
	mapsAFile := errnotest.Call{Number: syscall.SYS_MMAP, Argument: 3, Mask: syscall.MAP_ANON, Value: 0}
	for name, tt := range map[string]struct {
		call  errnotest.Call
		errno syscall.Errno
	}{
		"read at an offset": {errnotest.Call{Number: syscall.SYS_PREAD64}, syscall.EIO},
		"open":              {errnotest.Call{Number: syscall.SYS_OPENAT}, syscall.EIO},
		"open, stale":       {errnotest.Call{Number: syscall.SYS_OPENAT}, syscall.ESTALE},
		"lock":              {errnotest.Call{Number: syscall.SYS_FLOCK}, syscall.ENOLCK},
		"map":               {mapsAFile, syscall.ENOMEM},
	} {
		t.Run(name, func(t *testing.T) {
			dir, whole, want := filled(t)
			var err error
			errnotest.Fail(t, tt.call, tt.errno, func() { _, err = checkpoint.Open(dir, func(m string, err error) { t.Error(m, err) }) })
			if !errors.Is(err, tt.errno) || !strings.Contains(err.Error(), "kubeferry.") || !strings.Contains(err.Error(), "left as it is") {
				t.Errorf("got %v, want %v, and that the file is left as it is", err, tt.errno)
			}
			untouched(t, dir, whole, want)
		})
	}
}

// A first start that finds no room leaves no file that the next one would take for damaged.
func TestNoRoomForANewFile(t *testing.T) {
	dir := t.TempDir()
	var err error
	errnotest.Fail(t, errnotest.Call{Number: syscall.SYS_PWRITE64}, syscall.ENOSPC, func() {
		_, err = checkpoint.Open(dir, func(m string, err error) { t.Error(m, err) })
	})
	if files := stateFiles(t, dir); !errors.Is(err, syscall.ENOSPC) || len(files) > 0 {
		t.Errorf("got %v, left %v", err, files)
	}
	if _, reports := open(t, dir); len(reports) > 0 {
		t.Errorf("the next start: %v", reports)
	}
}

// A start that runs out of file descriptors, at whichever file, leaves the file as it is too.
func TestNoFileDescriptorsLeft(t *testing.T) {
	dir, whole, want := filled(t)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = min(limit.Cur, 256)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	var taken []*os.File
	defer func() {
		for _, file := range taken {
			file.Close()
		}
	}()
	for {
		file, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, file)
	}
	refused := 0
	for ; ; refused++ { // one more is left each time
		s, err := checkpoint.Open(dir, func(m string, err error) { t.Error(m, err) })
		if err == nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			break
		}
		if !errors.Is(err, syscall.EMFILE) || !strings.Contains(err.Error(), "left as it is") {
			t.Fatalf("%d are left: %v", refused, err)
		}
		if len(taken) == 0 {
			t.Fatal("there are never enough")
		}
		taken[0].Close()
		taken = taken[1:]
		unchanged(t, dir, whole)
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
	t.Log(refused, "starts were refused")
	for _, file := range taken {
		file.Close()
	}
	taken = nil
	untouched(t, dir, nil, want)
}

func filled(t *testing.T) (dir string, file []byte, want []string) {
	t.Helper()
	dir = t.TempDir()
	s, _ := open(t, dir)
	fill(t, s)
	want = contents(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, "kubeferry.db"))
	if err != nil {
		t.Fatal(err)
	}
	return dir, file, want
}

// unchanged checks that the file is as it was.
func unchanged(t *testing.T, dir string, whole []byte) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(dir, "kubeferry.db")); err == nil && !bytes.Equal(got, whole) {
		t.Error("the file was changed")
	}
	if aside, _ := filepath.Glob(filepath.Join(dir, "*.set-aside-*")); len(aside) > 0 {
		t.Error("set aside: ", aside)
	}
}

// untouched checks that a file is as it was, if whole is set, and that the next start finds all that it held.
func untouched(t *testing.T, dir string, whole []byte, want []string) {
	t.Helper()
	if whole != nil {
		unchanged(t, dir, whole)
	}
	s, reports := open(t, dir)
	if got := contents(t, s); !slices.Equal(got, want) || len(reports) > 0 {
		t.Error(fmt.Errorf("the next start finds %d of %d things, and reports %v", len(got), len(want), reports))
	}
}
