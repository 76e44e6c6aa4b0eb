package checkpoint_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// A replica that takes over reads no file that it has verified or written: with gigabytes that wait the leader would be late.
func TestLeadReadsNoFileAgain(t *testing.T) {
	const size = 32 << 20
	dir := t.TempDir()
	s, err := checkpoint.Open(t.TempDir(), func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	s.Lead(checkpoint.Stamp{Lineage: "l"}, (&tapped{}).tap)
	change := delta.WatchChange{Watch: "w", Meta: []byte(`{}`)}
	for i := range size >> 20 {
		change.Put = append(change.Put, delta.Known{Namespace: "n", Name: fmt.Sprint(i), Version: delta.NewVersion("u", "1"), Retained: true, Previous: make([]byte, 1<<20)})
	}
	if err := s.Commit(&checkpoint.Commit{Watches: []delta.WatchChange{change}}); err != nil {
		t.Fatal(err)
	}
	r, reports := openReplica(t, dir)
	if err := r.BeginCopy(); err != nil {
		t.Fatal(err)
	}
	for at, more := (*checkpoint.Range)(nil), true; more; more = at != nil {
		var changes checkpoint.Changes
		if changes, at, _, err = s.ReadRange(at, 4<<20); err != nil {
			t.Fatal(err)
		}
		if err := r.Apply([]checkpoint.Changes{changes}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(r.EndCopy(), s.Close()); err != nil {
		t.Fatal(err)
	}
	before := bytesRead(t)
	led, err := r.Lead()
	if err != nil {
		t.Fatal(err)
	}
	if n := bytesRead(t) - before; n > size/4 {
		t.Errorf("%d bytes were read", n)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.OpenReplica(dir, nil); !errors.Is(err, checkpoint.ErrLocked) {
		t.Errorf("another one may have the directory: %v", err)
	}
	if got, err := led.Previous("w", "n", "1"); len(got) != 1<<20 || err != nil || len(*reports) > 0 {
		t.Errorf("got %d bytes, %v, reports %v", len(got), err, *reports)
	}
	if err := led.Close(); err != nil {
		t.Fatal(err)
	}
}

// bytesRead returns how many bytes this process has read so far.
func bytesRead(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err == nil {
		_, err = fmt.Sscanf(string(text), "rchar: %d", &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}
