package checkpoint_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// bbolt leaves a goroutine behind where it finds damage in a file.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.etcd.io/bbolt.verifyPageReachable"))
}

// failing is a store that fails while fail is set, and keeps what it wrote.
type failing struct {
	*checkpoint.Store
	mu      sync.Mutex
	fail    error
	lies    bool // a commit that fails is on disk all the same
	tried   []*checkpoint.Commit
	written []*checkpoint.Commit
	entered chan struct{} // if set, receives at each Commit, which
	release chan struct{} // waits for this
}

func (f *failing) Commit(c *checkpoint.Commit) error {
	if f.entered != nil {
		f.entered <- struct{}{}
		<-f.release
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried = append(f.tried, c)
	if f.fail != nil {
		if f.lies {
			return errors.Join(f.fail, f.Store.Commit(c))
		}
		return f.fail
	}
	f.written = append(f.written, c)
	return f.Store.Commit(c)
}

func (f *failing) set(err error) { f.setLying(err, false) }

func (f *failing) setLying(err error, lies bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.lies = err, lies
}

// counter is a participant with one watch whose position is a number, and a log of the numbers it was handed.
type counter struct {
	t       testing.TB
	name    string
	value   int // changes in WithoutCapture
	entries []delta.Entry
	open    bool // Capture was called, and neither Committed nor Failed was
	done    []int
	last    int

	captured []delta.Entry
	written  uint64
	redo     bool
}

func (c *counter) Capture(commit *checkpoint.Commit) {
	if c.open {
		c.t.Error("two Captures without a Committed or Failed between")
	}
	c.open, c.last = true, c.value
	commit.Logs = append(commit.Logs, delta.LogChange{Pipeline: c.name, Append: slices.Clone(c.entries), Redo: c.redo, From: c.written})
	c.captured, c.entries = c.entries, nil
}

func (c *counter) Failed() {
	if !c.open {
		c.t.Error("a Failed without a Capture")
	}
	c.open, c.redo = false, true
	c.entries = append(c.captured, c.entries...)
}

func (c *counter) Committed(map[string]delta.LogSize) {
	if !c.open {
		c.t.Error("a Committed without a Capture")
	}
	c.open, c.redo = false, false
	c.done = append(c.done, c.last)
	for _, e := range c.captured {
		c.written = max(c.written, e.Seq+1)
	}
}

// settle forgets what no commit has written yet.
func (c *counter) settle(seq int) {
	c.entries = slices.DeleteFunc(c.entries, func(e delta.Entry) bool { return e.Seq == uint64(seq) })
}

func (c *counter) take(seq int) {
	c.value = seq
	c.entries = append(c.entries, gap(uint64(seq)))
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func runCommitter(t testing.TB, c *checkpoint.Committer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// A commit that failed is given back and captured anew, whether it reached the disk or not: what was settled meanwhile
// is not written, or not kept.
func TestFailedCommitIsCapturedAnew(t *testing.T) {
	for name, lies := range map[string]bool{"not on disk": false, "on disk": true} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t, t.TempDir())
			store, part := &failing{Store: s}, &counter{t: t, name: "p"}
			c := checkpoint.NewCommitter(store, quiet())
			c.Register(part)
			c.WithoutCapture(func() { part.take(1) })
			if err := c.Begin(); err != nil {
				t.Fatal(err)
			}
			full := errors.New("disk full")
			store.setLying(full, lies)
			for seq := 2; seq < 8; seq++ {
				c.WithoutCapture(func() { part.take(seq) })
				if err := c.Finish(); !errors.Is(err, full) || !errors.Is(c.Err(), full) {
					t.Errorf("got %v, Err %v", err, c.Err())
				}
				if seq%2 == 0 {
					c.WithoutCapture(func() { part.settle(seq) })
				}
			}
			store.set(nil)
			if err := c.Finish(); err != nil || c.Err() != nil {
				t.Errorf("got %v, Err %v", err, c.Err())
			}
			if n := len(store.written); n != 2 {
				t.Errorf("%d commits were written, want 2", n)
			}
			if got := seqsOf(t, s, "p"); !slices.Equal(got, []uint64{1, 3, 5, 7}) || s.Logs()["p"].Entries != 4 {
				t.Errorf("got %d, %+v", got, s.Logs()["p"])
			}
			if !s.Info().Clean {
				t.Error("the run does not count as ended well")
			}
		})
	}
}

func seqsOf(t testing.TB, s *checkpoint.Store, pipeline string) (seqs []uint64) {
	t.Helper()
	entries, err := s.ReadLog(pipeline)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		seqs = append(seqs, e.Seq)
	}
	return seqs
}

// What a commit that failed had about the run is in the next one.
func TestFailedCommitKeepsWhatItSaysOfTheRun(t *testing.T) {
	s, _ := open(t, t.TempDir())
	store := &failing{Store: s}
	c := checkpoint.NewCommitter(store, quiet())
	if err := c.Begin(); err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	store.set(full)
	if err := c.Finish(); !errors.Is(err, full) {
		t.Fatalf("got %v", err)
	}
	if got := s.Info(); got.Clean {
		t.Errorf("nothing was written, got %+v", got)
	}
	store.set(nil)
	runCommitter(t, c)
	if err := c.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := s.Info(); !got.Clean {
		t.Errorf("got %+v", got)
	}
}

// Nothing to write proves nothing: after a failure the disk is well once it takes a commit.
func TestOnlyTheDiskSaysThatItIsWell(t *testing.T) {
	s, _ := open(t, t.TempDir())
	store := &failing{Store: s}
	c := checkpoint.NewCommitter(store, quiet())
	store.set(errors.New("disk full"))
	if err := c.Begin(); err == nil {
		t.Fatal("no error")
	}
	stop := runCommitter(t, c)
	eventually(t, func() bool {
		store.mu.Lock()
		defer store.mu.Unlock()
		return len(store.tried) > 2
	})
	if c.Err() == nil {
		t.Error("Err is nil though nothing was written")
	}
	store.set(nil)
	eventually(t, func() bool { return c.Err() == nil })
	stop()
}

// hung is a disk on which a commit does not end.
type hung struct {
	*checkpoint.Store
	release chan struct{}
}

func (h hung) Commit(*checkpoint.Commit) error {
	<-h.release
	return nil
}

// A disk that hangs returns no error, and is not well.
func TestCommitThatHangs(t *testing.T) {
	s, _ := open(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		disk := hung{s, make(chan struct{})}
		c := checkpoint.NewCommitter(disk, quiet())
		go func() {
			if err := c.Begin(); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(checkpoint.HangTimeout)
		if err := c.Err(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err, writing := c.Err(), c.Writing(); err == nil || writing != checkpoint.HangTimeout+time.Second {
			t.Errorf("got %v, after %v", err, writing)
		}
		close(disk.release)
		synctest.Wait()
		if err, writing := c.Err(), c.Writing(); err != nil || writing != 0 {
			t.Errorf("once it ends: %v, %v", err, writing)
		}
	})
}

func eventually(t testing.TB, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
	}
}

// Commit waits for one that began after the call: one that has captured already does not do.
func TestCommitWaitsForOneThatBeganAfter(t *testing.T) {
	s, _ := open(t, t.TempDir())
	store, part := &failing{Store: s}, &counter{t: t, name: "p"}
	c := checkpoint.NewCommitter(store, quiet())
	c.Register(part)
	if err := c.Begin(); err != nil {
		t.Fatal(err)
	}
	store.entered, store.release = make(chan struct{}), make(chan struct{})
	stop := runCommitter(t, c)
	c.WithoutCapture(func() { part.take(1) })
	c.RequestCommit()
	<-store.entered // it has captured
	c.WithoutCapture(func() { part.take(2) })
	returned := make(chan error, 1)
	go func() { returned <- c.Commit(context.Background()) }()
	store.release <- struct{}{}
	<-store.entered // the second one
	select {
	case err := <-returned:
		t.Errorf("returned before its commit was written: %v", err)
	default:
	}
	if entries, _ := s.ReadLog("p"); len(entries) != 1 {
		t.Errorf("got %d entries", len(entries))
	}
	store.release <- struct{}{}
	go func() { // whatever else it writes, perhaps before that of the call
		for range store.entered {
			store.release <- struct{}{}
		}
	}()
	if err := <-returned; err != nil {
		t.Error(err)
	}
	if entries, _ := s.ReadLog("p"); len(entries) < 2 {
		t.Errorf("got %d entries", len(entries))
	}
	stop()
	close(store.entered)
}

// As long as the disk refuses, Commit waits, and ends with its context.
func TestCommitWaitsForTheDisk(t *testing.T) {
	s, _ := open(t, t.TempDir())
	store, part := &failing{Store: s}, &counter{t: t, name: "p"}
	c := checkpoint.NewCommitter(store, quiet())
	c.Register(part)
	if err := c.Begin(); err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	store.set(full)
	runCommitter(t, c)
	c.WithoutCapture(func() { part.take(1) })
	ctx, cancel := context.WithCancelCause(context.Background())
	returned := make(chan error, 1)
	go func() { returned <- c.Commit(ctx) }()
	for deadline := time.Now().Add(5 * time.Second); c.Err() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no commit was tried")
		}
	}
	why := errors.New("why")
	cancel(why)
	if err := <-returned; !errors.Is(err, why) || !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	store.set(nil)
	if err := c.Commit(context.Background()); err != nil || c.Err() != nil {
		t.Errorf("got %v, Err %v", err, c.Err())
	}
	if entries, _ := s.ReadLog("p"); len(entries) != 1 {
		t.Errorf("got %d entries", len(entries))
	}
}

// What two participants get in one WithoutCapture is in one commit, whatever runs beside it.
func TestHandIsAtomic(t *testing.T) {
	s, _ := open(t, t.TempDir())
	store := &failing{Store: s}
	c := checkpoint.NewCommitter(store, quiet())
	var mu sync.Mutex // the participants' own, as a pipeline has one
	parts := []*counter{{t: t, name: "a"}, {t: t, name: "b"}}
	c.Register(parts[0], parts[1])
	if err := c.Begin(); err != nil {
		t.Fatal(err)
	}
	stop := runCommitter(t, c)
	const workers, each = 4, 2000
	var seq atomic.Int64
	var handing sync.WaitGroup
	for range workers {
		handing.Go(func() {
			for n := range each {
				number := int(seq.Add(1))
				c.WithoutCapture(func() {
					for _, part := range parts {
						mu.Lock()
						part.take(number)
						mu.Unlock()
					}
				})
				if n%500 == 0 {
					if err := c.Commit(context.Background()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	handing.Wait()
	if err := c.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	stop()
	total := 0
	for _, written := range store.written {
		numbers := [2][]uint64{}
		for n, log := range written.Logs {
			for _, e := range log.Append {
				numbers[n] = append(numbers[n], e.Seq)
			}
			slices.Sort(numbers[n])
		}
		if !slices.Equal(numbers[0], numbers[1]) {
			t.Fatalf("a commit tore a hand-over: %d and %d", len(numbers[0]), len(numbers[1]))
		}
		total += len(numbers[0])
	}
	if total != workers*each {
		t.Errorf("%d were written, want %d", total, workers*each)
	}
}

// A commit may reach the disk though it failed, as when only the last sync did; written again, it counts once.
func TestCommitThatReachedTheDiskCountsOnce(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	first := &checkpoint.Commit{Logs: []delta.LogChange{{Pipeline: "p", Append: []delta.Entry{gap(1), gap(2)}}}}
	second := &checkpoint.Commit{Logs: []delta.LogChange{{Pipeline: "p", Append: []delta.Entry{gap(3)}, Remove: []delta.LogKey{{Seq: 1}}}}}
	for _, c := range []*checkpoint.Commit{first, first, second, second} {
		before := s.Logs()
		if err := s.Commit(c); err != nil {
			t.Fatal(err)
		}
		checkpoint.Forget(s, before)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, dir)
	entries, err := s.ReadLog("p")
	if got := s.Logs()["p"]; err != nil || len(entries) != 2 || got.Entries != 2 || got.Next != 4 || got.Bytes <= 0 {
		t.Errorf("got %+v for %d entries, %v", got, len(entries), err)
	}
}

// A log is dropped by a commit that holds nothing else, for as long as another replica cannot have taken over.
func TestDropLog(t *testing.T) {
	s, _ := open(t, t.TempDir())
	store := &failing{Store: s}
	c := checkpoint.NewCommitter(store, quiet())
	c.Register(&counter{t: t, name: "runs"})
	if err := c.Begin(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gone", "also"} {
		if err := s.Commit(&checkpoint.Commit{Logs: []delta.LogChange{{Pipeline: name, Append: []delta.Entry{entry(t, 0)}}}}); err != nil {
			t.Fatal(err)
		}
	}
	full := errors.New("disk full")
	store.set(full)
	if _, err := c.DropLog("gone"); !errors.Is(err, full) || len(s.Logs()) != 3 {
		t.Errorf("got %v, logs %v", err, s.Logs())
	}
	store.set(nil)
	if size, err := c.DropLog("gone"); size.Entries != 1 || err != nil || len(s.Logs()) != 2 {
		t.Errorf("got %+v, %v, logs %v", size, err, s.Logs())
	}
	if last := store.tried[len(store.tried)-1]; len(last.Logs)+len(last.Watches) > 0 || last.Info != nil {
		t.Errorf("the commit holds more: %+v", last)
	}
	if _, err := c.DropLog("gone"); !errors.Is(err, checkpoint.ErrNoLog) {
		t.Errorf("once more: got %v", err)
	}
	if err := c.Finish(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DropLog("also"); err == nil || errors.Is(err, checkpoint.ErrNoLog) {
		t.Errorf("behind the last commit: got %v", err)
	}
}
