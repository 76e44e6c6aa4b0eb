package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
)

// slowDisk is a copy on a disk on which each transaction takes a while.
type slowDisk struct {
	takes, transactions atomic.Int64

	mu      sync.Mutex // guards what follows
	written []string
}

func diskOf(takes time.Duration) *slowDisk {
	d := &slowDisk{}
	d.takes.Store(int64(takes))
	return d
}

func (*slowDisk) BeginCopy() error { return nil }

func (*slowDisk) EndCopy() error { return nil }

func (d *slowDisk) Apply(changes []checkpoint.Changes) error {
	time.Sleep(time.Duration(d.takes.Load()))
	d.transactions.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range changes {
		d.written = append(d.written, string(c))
	}
	return nil
}

func (d *slowDisk) content() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.written)
}

// idle is a leader's state that is small.
type idle struct{}

func (idle) ReadRange(*checkpoint.Range, int) (checkpoint.Changes, *checkpoint.Range, uint64, error) {
	return checkpoint.Changes("copy"), nil, 0, nil
}

// nobody is an [Authenticator] that accepts every token.
type nobody struct{}

func (nobody) Token(context.Context, string) (string, error) { return "token", nil }

func (nobody) Check(context.Context, string, string) error { return nil }

// follower is a standby at one end of a connection, with the times of a synctest bubble.
func follower(t *testing.T, conn net.Conn, disk *slowDisk) *Standby {
	t.Helper()
	s := NewStandby(nil, nil, disk, nobody{}, time.Second, slog.New(slog.DiscardHandler))
	ctx, leave := context.WithCancelCause(t.Context())
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	var running sync.WaitGroup
	arrived := newInbox()
	running.Go(func() { arrived.fill(conn) })
	running.Go(func() { leave(s.receive(conn, arrived, leave)) })
	t.Cleanup(func() {
		arrived.close()
		running.Wait()
	})
	return s
}

// pair is a leader and its standby.
func pair(t *testing.T, disk *slowDisk) (*Leader, *Standby) {
	t.Helper()
	near, far := net.Pipe()
	l := &Leader{
		auth: nobody{}, logger: slog.New(slog.DiscardHandler), source: idle{}, reviews: make(chan struct{}, 1),
		refused: map[string]bool{}, standbys: map[*standby]struct{}{}, changed: make(chan struct{}), last: 1,
	}
	l.running.Go(func() { l.serve(t.Context(), l.addUnauthenticated(near)) })
	t.Cleanup(l.running.Wait)
	if err := errors.Join(writeHello(far, hello{Protocols: []int{protocol}}), readHello(far, &helloAnswer{})); err != nil {
		t.Fatal(err)
	}
	return l, follower(t, far, disk)
}

// commitEvery makes commits of two parts each, and calls after behind each.
func commitEvery(l *Leader, interval time.Duration, commits int, after func()) (parts []string) {
	for range commits {
		stamp := &checkpoint.Stamp{Commit: l.last + 1}
		for _, part := range "ab" {
			parts = append(parts, fmt.Sprint(stamp.Commit, string(part)))
		}
		l.Committed(stamp, []checkpoint.Changes{[]byte(parts[len(parts)-2]), []byte(parts[len(parts)-1])})
		time.Sleep(interval)
		after()
	}
	return parts
}

// TestWrittenInOneGo: a standby keeps up with a leader that commits more often than its disk writes.
func TestWrittenInOneGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := diskOf(300 * time.Millisecond)
		l, s := pair(t, disk)
		time.Sleep(time.Second)
		before := disk.transactions.Load()
		want := commitEvery(l, 100*time.Millisecond, 200, func() {
			if of := l.Standbys(); of.InSync != 1 || of.Lag > time.Second || !s.Status().InSync {
				t.Fatalf("it does not keep up: %+v", of)
			}
		})
		time.Sleep(time.Second)
		if got := disk.content(); !slices.Equal(got[len(got)-len(want):], want) {
			t.Errorf("written: %v", got)
		}
		if n := disk.transactions.Load() - before; n > 100 {
			t.Errorf("200 commits in %d transactions", n)
		}
	})
}

// TestAckOfOneCommit: who waits for a commit does not wait for those behind it, which a standby may always lack.
func TestAckOfOneCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := pair(t, diskOf(300*time.Millisecond))
		time.Sleep(time.Second)
		n, acked := 0, false
		var waiting sync.WaitGroup
		commitEvery(l, 100*time.Millisecond, 50, func() {
			if n++; n == 10 {
				waiting.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					acked = l.AwaitAck(ctx)
				})
			}
		})
		if waiting.Wait(); !acked {
			t.Error("not acknowledged in a second")
		}
	})
}

// TestBothAgreeOnInSync: a standby that the leader does not count must not be ready, or a rollout would go on without one. The lag says
// how far it is behind.
func TestBothAgreeOnInSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		l, s := pair(t, disk)
		time.Sleep(time.Second)
		disk.takes.Store(int64(12 * time.Second))
		alone := 0
		commitEvery(l, 100*time.Millisecond, 300, func() {
			of := l.Standbys()
			if of.Connected != 1 {
				t.Fatal("it was dropped")
			}
			if of.InSync > 0 {
				return
			}
			if alone++; s.Status().InSync {
				t.Fatalf("the leader counts none; the standby says that it is in sync, as of %v ago", time.Since(s.Status().Current))
			}
			if of.Lag < time.Second {
				t.Fatalf("a lag of %v", of.Lag)
			}
		})
		if alone < 100 {
			t.Errorf("not in sync at %d of 300 moments", alone)
		}
		disk.takes.Store(0)
		time.Sleep(30 * time.Second)
		if l.Standbys().InSync != 1 || !s.Status().InSync {
			t.Error("not in sync again")
		}
	})
}

// TestAckIsBehindTheDisk: nothing of half a commit is written, what is acknowledged is on the disk, and what has arrived when the
// connection ends is applied.
func TestAckIsBehindTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := diskOf(time.Second)
		near, far := net.Pipe()
		follower(t, far, disk)
		send := func(kind byte, content []byte) {
			if err := writeFrame(near, kind, content); err != nil {
				t.Fatal(err)
			}
		}
		var acked atomic.Uint64
		go func() {
			for {
				_, content, err := readFrame(near, maxHello)
				if err != nil {
					return
				}
				number, _ := readProgress(content)
				if acked.Store(number); !slices.Contains(disk.content(), fmt.Sprint(number, "a")) {
					t.Errorf("commit %d is acknowledged; on disk: %v", number, disk.content())
				}
			}
		}()
		expect := func(number uint64, content ...string) {
			t.Helper()
			if got := disk.content(); acked.Load() != number || !slices.Equal(got, content) {
				t.Errorf("acknowledged: %d, want %d; on disk: %v, want %v", acked.Load(), number, got, content)
			}
		}
		send(frameRange, []byte("1a"))
		send(frameWhole, progress(1))
		time.Sleep(1500 * time.Millisecond)
		expect(1, "1a")
		send(frameChange, []byte("2a"))
		send(frameCommit, progress(2))
		send(frameChange, []byte("3a")) // arrives while 2 is written
		synctest.Wait()
		expect(1, "1a")
		time.Sleep(3 * time.Second)
		expect(2, "1a", "2a")
		send(frameCommit, progress(3))
		send(frameChange, []byte("4a"))
		send(frameCommit, progress(4))
		send(frameChange, []byte("5a"))
		synctest.Wait()
		_ = near.Close()
		time.Sleep(3 * time.Second)
		expect(2, "1a", "2a", "3a", "4a")
	})
}

// TestInboxIsBounded: a standby reads no more ahead than that.
func TestInboxIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		follower(t, far, diskOf(time.Hour))
		var read atomic.Int64
		go func() {
			for n := range int64(100) {
				if writeFrame(near, frameRange, make([]byte, 1<<20)) != nil {
					return
				}
				read.Store(n)
			}
		}()
		time.Sleep(time.Minute)
		if read := read.Load(); read > 10 {
			t.Errorf("%d MiB were read of a disk that writes nothing", read)
		}
		_ = near.Close()
	})
}

// One commit that is larger than what may wait for a standby, as of a million known objects that become due at once, drops none.
func TestLargeCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := pair(t, diskOf(0))
		time.Sleep(time.Second)
		if l.Standbys().InSync != 1 {
			t.Fatal("not in sync")
		}
		parts := slices.Repeat([]checkpoint.Changes{make(checkpoint.Changes, 1<<20)}, maxQueue>>20+1)
		l.Committed(&checkpoint.Stamp{Commit: l.last + 1}, parts)
		time.Sleep(time.Second)
		if standbys := l.Standbys(); standbys.InSync != 1 {
			t.Errorf("got %+v", standbys)
		}
	})
}
