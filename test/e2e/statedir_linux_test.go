package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestExtendedOthersInTheStateDirectory has another user of the machine, in a volume whose directory is open to all, try to read each file of
// the state directory, and to connect to the socket in it; and a process of kubeferry's own user hold hundreds of connections to that,
// beside which the commands work.
func TestExtendedOthersInTheStateDirectory(t *testing.T) {
	beside(t)
	const held, most = 200, 64
	base, err := os.MkdirTemp("", "kubeferry") // t.TempDir is open to its owner only
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(base) }()
	dir := filepath.Join(base, "volume")
	for _, path := range []string{base, dir} {
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, 0o777)); err != nil { //nolint:gosec // a volume may be
			t.Fatal(err)
		}
	}
	file := writeConfig(t, t.TempDir(), fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/secrets], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: out}]
sinks: [{name: out, stdout: {}}]
`, dir, newNamespace(t, "others")))
	e := runExporter(t, plane(t).KubeconfigFile(), file)
	e.WaitReady()

	found := map[string]bool{}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		found[entry.Name()] = true
		if info, err := entry.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
		if os.Geteuid() != 0 { // only root can act as another user
			return nil
		}
		err = asNobody(func() error {
			if entry.Type() == fs.ModeSocket {
				fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer func() { _ = unix.Close(fd) }()
				return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
			}
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		})
		if !errors.Is(err, unix.EACCES) {
			t.Errorf("%s: another user gets %v, want %v", path, err, unix.EACCES)
		}
		return nil
	})
	if err != nil || !found["kubeferry.sock"] || !found["kubeferry.db"] || !found["redaction.key"] {
		t.Errorf("found %v, %v", found, err)
	}

	conns := make([]net.Conn, held)
	for n := range conns {
		conn, err := net.Dial("unix", filepath.Join(dir, "kubeferry.sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "GET /deadletters?from=0 HTTP/1.1\r\nHost: held\r\nX-Slow: ")
		conns[n] = conn
	}
	if output, code := runToEnd(t, "replay", "-c", file); code != 0 || !strings.Contains(output, "no dead letters") {
		t.Errorf("replay: exit code %d and\n%s", code, output)
	}
	eventually(t, wide, "most are closed", func() error {
		open := 0
		for _, conn := range conns {
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			var timeout net.Error
			if _, err := conn.Read(make([]byte, 1)); errors.As(err, &timeout) && timeout.Timeout() {
				open++
			}
		}
		if open > most {
			return fmt.Errorf("%d are open", open)
		}
		return nil
	})
}

// asNobody calls f as a user without any rights to files. The thread goes on afterwards: when it ended, the kernel would kill the
// servers that it started.
func asNobody(f func() error) error {
	const nobody = 65534
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	group, user := os.Getegid(), os.Geteuid()
	err := errors.Join(unix.Setfsgid(nobody), unix.Setfsuid(nobody))
	if err == nil {
		err = f()
	}
	if back := errors.Join(unix.Setfsuid(user), unix.Setfsgid(group)); back != nil {
		panic(back)
	}
	return err
}
