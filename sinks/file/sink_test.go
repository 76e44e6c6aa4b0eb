package file

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

func newConfig(path string) *Config {
	c := NewConfig()
	c.Path = path
	return c
}

func open(t *testing.T, path string) sinks.Sink {
	t.Helper()
	sink, err := newConfig(path).Open(t.Context(), sinks.Env{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close(t.Context()) })
	return sink
}

func deliver(t *testing.T, sink sinks.Sink, bodies ...string) {
	t.Helper()
	if err := sink.Deliver(t.Context(), batch(bodies...)); err != nil {
		t.Fatal(err)
	}
}

func batch(bodies ...string) []sinks.Record {
	records := make([]sinks.Record, len(bodies))
	for i, body := range bodies {
		records[i] = sinks.Record{Body: []byte(body)}
	}
	return records
}

func want(t *testing.T, path, content string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != content {
		t.Errorf("%s: got %q, want %q", filepath.Base(path), got, content)
	}
}

func TestSuite(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{Kind: Kind(), New: func(t *testing.T) *sinktest.Peer {
		dir := filepath.Join(t.TempDir(), "out")
		moved := dir + ".away"
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "records.jsonl")
		rename := func(from, to string) {
			if err := os.Rename(from, to); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		const bodiesOnly = "a file holds the bodies only"
		return &sinktest.Peer{
			Config: func() sinks.Config { return newConfig(path) },
			Stored: func() []sinktest.Stored {
				data, err := os.ReadFile(path)
				if err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				var stored []sinktest.Stored
				for line := range bytes.Lines(data) {
					stored = append(stored, sinktest.Stored{Body: line})
				}
				return stored
			},
			Fail: func() { rename(dir, moved) },
			Mend: func() { rename(moved, dir) },
			Cannot: map[sinktest.Ability]string{
				sinktest.FailRecord:  "a file system does not look into records",
				sinktest.Poison:      "a file system does not look into records",
				sinktest.Hang:        "a local file system cannot be made to hang",
				sinktest.Leave:       "there is no connection; a missing directory is Fail",
				sinktest.Deny:        "permissions do not bind a superuser",
				sinktest.Credentials: "a file has none",
				sinktest.DedupID:     bodiesOnly, sinktest.Key: bodiesOnly, sinktest.Headers: bodiesOnly,
				sinktest.Attributes: "they go into the body; see TestBinaryEvents",
			},
		}
	}})
}

func TestAppends(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	deliver(t, open(t, path), `{"a":1}`, `{"b":2}`)
	deliver(t, open(t, path), `{"c":3}`)
	want(t, path, "{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("got mode %o, want 600", got)
	}
}

// TestBinaryEvents checks that the attributes of an event are not lost where there are no headers.
func TestBinaryEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	event := sinks.Record{
		ContentType: "application/json", Body: []byte(`{"a":1}`),
		Attributes: map[string]string{"specversion": "1.0", "id": "1", "subject": "\"ä\""},
	}
	if err := open(t, path).Deliver(t.Context(), []sinks.Record{event, {Body: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	want(t, path, `{"id":"1","specversion":"1.0","subject":"\"ä\"","datacontenttype":"application/json","data":{"a":1}}`+"\n{}\n")
}

func TestTornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("{\"a\":1}\n{\"b\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	deliver(t, open(t, path), `{"b":2}`)
	want(t, path, "{\"a\":1}\n{\"b\":\n{\"b\":2}\n")
}

func TestMovedAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	sink := open(t, path)
	deliver(t, sink, "1")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	deliver(t, sink, "2")
	want(t, path+".1", "1\n")
	want(t, path, "2\n")
	// logrotate's copytruncate
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	deliver(t, sink, "3")
	want(t, path, "3\n")
}

// Whoever moves the file away and reads it, as replay does with dead letters, has all of it: what is acknowledged after
// that is in the next file.
func TestMovedAwayWhileWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	sink := open(t, path)
	found := map[string]bool{}
	take := func() {
		aside := path + ".aside"
		if os.Rename(path, aside) != nil {
			return // there is none yet
		}
		data, err := os.ReadFile(aside)
		if err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(string(data)) {
			found[strings.TrimSpace(line)] = true
		}
		if err := os.Remove(aside); err != nil {
			t.Error(err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				take()
			}
		}
	}()
	var acknowledged []string
	for n := range 1000 {
		if sink.Deliver(t.Context(), batch(fmt.Sprint(n))) == nil {
			acknowledged = append(acknowledged, fmt.Sprint(n))
		}
	}
	close(stop)
	<-stopped
	deliver(t, sink, "last")
	take()
	lost := 0
	for _, n := range append(acknowledged, "last") {
		if !found[n] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged records are lost", lost, len(acknowledged))
	}
}

// TestCheck: what is wrong is reported at start and by Check, and nothing is left behind.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	tests := []struct{ name, path, want string }{
		{"nothing there yet", filepath.Join(dir, "new"), ""},
		{"a file", filepath.Join(dir, "there"), ""},
		{"no directory", filepath.Join(dir, "none", "f"), "no such file or directory"},
		{"a file for a directory", filepath.Join(dir, "there", "f"), "not a directory"},
		{"a directory", dir, "is not a regular file"},
		{"a device", os.DevNull, "is not a regular file"},
	}
	if err := os.WriteFile(filepath.Join(dir, "there"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			sink, err := newConfig(test.path).Open(t.Context(), sinks.Env{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			err = sink.(sinks.Checker).Check(t.Context())
			if got := fmt.Sprint(err); test.want == "" && err != nil || !strings.Contains(got, test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if (log.Len() > 0) != (test.want != "") || !strings.Contains(log.String(), test.want) {
				t.Errorf("got log %q, want it to hold %q", log.String(), test.want)
			}
		})
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "there" {
		t.Errorf("got %v in the directory, error %v", entries, err)
	}
	want(t, filepath.Join(dir, "there"), "{}\n")
}

func TestNotRegular(t *testing.T) {
	for _, path := range []string{t.TempDir(), os.DevNull} {
		err := open(t, path).Deliver(t.Context(), batch("1"))
		if class := sinks.Classify(err); class == nil || class.Permanent {
			t.Errorf("%s: got %v, want a transient error", path, err)
		}
	}
}

// TestFullDisk runs itself again under a limit of file size, which cuts a write short as a full disk does.
func TestFullDisk(t *testing.T) {
	path := os.Getenv("KUBEFERRY_TEST_FILE")
	if path == "" {
		path = filepath.Join(t.TempDir(), "f")
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullDisk$")
		command.Env = append(os.Environ(), "KUBEFERRY_TEST_FILE="+path)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = 1000
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	sink := open(t, path)
	deliver(t, sink, "1")
	err := sink.Deliver(t.Context(), batch("2", fmt.Sprintf("%q", strings.Repeat("x", 2000))))
	if class := sinks.Classify(err); class == nil || class.Permanent || class.Reason != sinks.ReasonUnavailable {
		t.Errorf("got %v, want a transient %s", err, sinks.ReasonUnavailable)
	}
	want(t, path, "1\n")
	deliver(t, sink, "3")
	want(t, path, "1\n3\n")
}

// TestTwoWriters: nothing is written while another process appends, which cuts off what it could not write whole.
func TestTwoWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	sink := open(t, path)
	deliver(t, sink, "1")
	other := flock.New(path, flock.SetFlag(os.O_RDWR))
	if err := other.Lock(); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := sink.Deliver(ctx, batch("2")); err == nil {
		t.Error("it writes meanwhile")
	}
	want(t, path, "1\n")
	if err := other.Unlock(); err != nil {
		t.Fatal(err)
	}
	deliver(t, sink, "3")
	want(t, path, "1\n2\n3\n") // the call that was given up goes on
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"good", func(*Config) {}, ""},
		{"no path", func(c *Config) { c.Path = "" }, "path"},
		{"relative", func(c *Config) { c.Path = "f" }, "~path"},
		{"no sync", func(c *Config) { c.Sync = false }, "~sync"},
		{"concurrency", func(c *Config) { c.Concurrency = 2 }, "~concurrency"},
		{"tls", func(c *Config) { c.TLS = &sinks.TLS{} }, "~tls"},
	}
	for _, test := range tests {
		c := newConfig("/f")
		test.change(c)
		got := ""
		for _, fault := range c.Validate() {
			if fault.Warning {
				got += "~"
			}
			got += fault.Path
		}
		if got != test.want || c.Limits().Concurrency != 1 {
			t.Errorf("%s: got faults %q, want %q", test.name, got, test.want)
		}
	}
}
