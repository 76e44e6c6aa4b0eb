package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
)

// deadLetters opens a state directory for dead letters, with a committer that runs until the returned function is called.
func deadLetters(t *testing.T, dir string, maxBytes int64) (*checkpoint.DeadLetters, *failing, func()) {
	t.Helper()
	s, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	store := &failing{Store: s}
	c := checkpoint.NewCommitter(store, quiet())
	d := checkpoint.NewDeadLetters(s, c, maxBytes)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return d, store, stop
}

func readLetters(t *testing.T, d *checkpoint.DeadLetters) (letters []string) {
	t.Helper()
	for from := uint64(0); ; {
		read, err := d.Read(t.Context(), from, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(read) == 0 {
			return letters
		}
		if len(read) > 1 {
			t.Fatalf("%d letters are read at once", len(read))
		}
		letters = append(letters, fmt.Sprint(read[0].Seq, string(read[0].Letter)))
		from = read[0].Seq + 1
	}
}

// Dead letters are on disk when Write returns. One that finds no room is refused until others are removed.
func TestDeadLetters(t *testing.T) {
	dir := t.TempDir()
	d, _, stop := deadLetters(t, dir, 10)
	for _, letter := range []string{`"aa"`, `"b"`} {
		if _, err := d.Write(t.Context(), []byte(letter)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Write(t.Context(), []byte(`"cc"`)); !errors.Is(err, checkpoint.ErrDeadLettersFull) {
		t.Errorf("got %v", err)
	}
	if s := d.Status(); !s.Full || s.Entries != 2 || s.Bytes != 7 {
		t.Errorf("got %+v", s)
	}
	stop()
	d, _, _ = deadLetters(t, dir, 10)
	if got, want := readLetters(t, d), []string{`0"aa"`, `1"b"`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := d.Write(t.Context(), []byte(`"cc"`)); !errors.Is(err, checkpoint.ErrDeadLettersFull) {
		t.Errorf("got %v", err)
	}
	if err := d.Remove(t.Context(), []uint64{0}); err != nil {
		t.Fatal(err)
	}
	if s := d.Status(); s.Full || s.Entries != 1 || s.Bytes != 3 {
		t.Errorf("got %+v", s)
	}
	if _, err := d.Write(t.Context(), []byte(`"cc"`)); err != nil {
		t.Error(err)
	}
	if got, want := readLetters(t, d), []string{`1"b"`, `2"cc"`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Letters of one call are written in order, by one commit, up to the first that finds no room; none of them if the commit fails.
func TestDeadLettersAtOnce(t *testing.T) {
	d, store, _ := deadLetters(t, t.TempDir(), 10)
	store.set(errors.New("disk full"))
	if n, err := d.Write(t.Context(), []byte(`"a"`), []byte(`"b"`)); n != 0 || err == nil {
		t.Errorf("%d were written to a full disk: %v", n, err)
	}
	store.set(nil)
	n, err := d.Write(t.Context(), []byte(`"a"`), []byte(`"b"`), []byte(`"cccccc"`), []byte(`"d"`))
	if n != 2 || !errors.Is(err, checkpoint.ErrDeadLettersFull) {
		t.Errorf("%d were written: %v", n, err)
	}
	if got, want := readLetters(t, d), []string{`2"a"`, `3"b"`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A record whose letter found no room waits, although a smaller letter finds some.
func TestDeadLettersFull(t *testing.T) {
	d, _, _ := deadLetters(t, t.TempDir(), 10)
	for _, c := range []struct {
		letter     string
		full, fits bool
	}{
		{`"aaaa"`, false, true},
		{`"bbbbbb"`, true, false},
		{`"ccc"`, true, false},
		{`"d"`, true, true},
	} {
		_, err := d.Write(t.Context(), []byte(c.letter))
		if full := d.Status().Full; full != c.full || (err == nil) != c.fits {
			t.Errorf("after %s: full %v, %v", c.letter, full, err)
		}
	}
	if err := d.Remove(t.Context(), []uint64{0}); err != nil {
		t.Fatal(err)
	}
	if d.Status().Full {
		t.Error("full after letters were removed")
	}
}

// A letter that finds no room while another one is being written finds some when that fails.
func TestDeadLettersFullUntilAFailure(t *testing.T) {
	d, store, _ := deadLetters(t, t.TempDir(), 10)
	store.entered, store.release = make(chan struct{}, 10), make(chan struct{})
	store.set(errors.New("disk full"))
	first := make(chan error)
	go func() {
		_, err := d.Write(t.Context(), []byte(`"aaaaaa"`))
		first <- err
	}()
	<-store.entered
	if _, err := d.Write(t.Context(), []byte(`"bbb"`)); !errors.Is(err, checkpoint.ErrDeadLettersFull) || !d.Status().Full {
		t.Errorf("got %v, full: %v", err, d.Status().Full)
	}
	close(store.release)
	if err := <-first; err == nil {
		t.Error("written to a full disk")
	}
	store.set(nil)
	if _, err := d.Write(t.Context(), []byte(`"bbb"`)); err != nil || d.Status().Full {
		t.Errorf("got %v, full: %v", err, d.Status().Full)
	}
}

// A dead letter that cannot be written is an error, and takes no room of the bound.
func TestDeadLetterThatCannotBeWritten(t *testing.T) {
	d, store, _ := deadLetters(t, t.TempDir(), 10)
	store.set(errors.New("disk full"))
	for range 2 {
		if _, err := d.Write(t.Context(), []byte(`"aaaaaa"`)); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("got %v", err)
		}
	}
	store.set(nil)
	if _, err := d.Write(t.Context(), []byte(`"aaaaaa"`)); err != nil {
		t.Error(err)
	}
	if got := readLetters(t, d); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}
