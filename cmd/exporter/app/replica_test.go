package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/replication"
	"github.com/kubeferry/kubeferry/source"
)

// TestClaim: a replica that leads claims a commit of its term once that is on disk. One that ends before may be the only one that has the
// state, and the Lease names none that nobody has.
func TestClaim(t *testing.T) {
	dir, logger := t.TempDir(), slog.New(slog.DiscardHandler)
	report := func(message string, err error) { t.Error(message, err) }
	open := func() *checkpoint.Store {
		store, err := checkpoint.Open(dir, report)
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	write := func(stamp checkpoint.Stamp) {
		store := open()
		store.Lead(stamp, func(*checkpoint.Stamp, []checkpoint.Changes) {})
		if err := checkpoint.NewCommitter(store, logger).Begin(); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	take := func() *replica {
		copied, err := checkpoint.OpenReplica(dir, report)
		if err != nil {
			t.Fatal(err)
		}
		if err := copied.Close(); err != nil {
			t.Fatal(err)
		}
		return &replica{
			config: &config.Config{StateDir: dir}, copied: copied, logger: logger, lease: replication.NewLease(replication.LeaseOptions{}),
		}
	}

	write(checkpoint.Stamp{Lineage: "l", Commit: 41}.Begin(7))
	r := take()
	want := replication.Claim{Lineage: "l", Term: 7, Commit: 42}
	store := open()
	if _, err := r.begin(store, nil, offsetByClock); err != nil {
		t.Fatal(err)
	}
	if got := r.claim(); got != want {
		t.Errorf("before its first commit it claims %+v, want %+v", got, want)
	}
	if err := checkpoint.NewCommitter(store, logger).Begin(); err != nil {
		t.Fatal(err)
	}
	if got := r.claim(); got.Commit != want.Commit+1 {
		t.Errorf("after its first commit it claims %+v", got)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	r = take()
	write(checkpoint.Stamp{Lineage: "other", Commit: 42}.Begin(7)) // as far as the former
	if _, err := r.begin(open(), nil, offsetByClock); err == nil {
		t.Error("it leads with another state than it has claimed")
	}
}

// oneLease is an API server with one Lease, whose replicas come one after the other. test/e2e runs the real one; here the clock is ours.
type oneLease struct {
	mu    sync.Mutex
	lease *coordinationv1.Lease
}

func (l *oneLease) Get(context.Context, string) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease.DeepCopy(), nil
}

func (l *oneLease) Create(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return l.Update(ctx, lease)
}

func (l *oneLease) Update(_ context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease.DeepCopy()
	return lease, nil
}

// TestBegin has a replica take a Lease and begin, twice: the first one ends before its first commit.
func TestBegin(t *testing.T) {
	logger, ctx := slog.New(slog.DiscardHandler), context.Background()
	for _, test := range []struct {
		name      string
		commit    uint64 // of the copy, of term 7, whose last run ended well; 0: there is none
		lease     string // the commit in the Lease; empty: it has no annotations
		offset    string // in the Lease; that of the copy is 5
		lost      bool   // what was delivered
		wantClean bool
	}{
		{name: "at the Lease", commit: 42, lease: "7/42", offset: "5", wantClean: true},
		{name: "behind it", commit: 42, lease: "7/43", offset: "5", lost: true},
		{name: "beyond it", commit: 42, lease: "7/41", offset: "5"},
		{name: "of a Lease that was deleted", commit: 42, lost: true},
		{name: "without the offset", commit: 42, lease: "7/42", offset: "1000000000000000000", lost: true},
		{name: "empty", lease: "7/42", offset: "1000000000000000000", lost: true},
		{name: "the very first", wantClean: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			report := func(message string, err error) { t.Log(message, err) }
			now, holder, seconds := time.Unix(1e9, 0), "gone", int32(10)
			client := &oneLease{lease: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}}}
			if test.lease != "" {
				client.lease.Annotations = map[string]string{
					"kubeferry.dev/lineage": "l", "kubeferry.dev/offset": test.offset, "kubeferry.dev/term": "7", "kubeferry.dev/commit": test.lease,
				}
			}
			dir := t.TempDir()
			if test.commit > 0 {
				store, err := checkpoint.Open(dir, report)
				if err != nil {
					t.Fatal(err)
				}
				store.Lead(checkpoint.Stamp{Lineage: "l", Commit: test.commit - 2}.Begin(7), func(*checkpoint.Stamp, []checkpoint.Changes) {})
				committer := checkpoint.NewCommitter(store, logger)
				committer.Register(offsetState{source.NewOffset(5, func() time.Time { return time.Time{} })})
				if err := errors.Join(committer.Begin(), committer.Finish(), store.Close()); err != nil {
					t.Fatal(err)
				}
			}
			for _, life := range []string{"first", "second"} {
				if life == "second" && test.lease == "" {
					break // the first one has named what it had
				}
				if test.commit == 0 {
					dir = t.TempDir() // a Pod's emptyDir goes with it
				}
				copied, err := checkpoint.OpenReplica(dir, report)
				if err != nil {
					t.Fatal(err)
				}
				r := &replica{config: &config.Config{StateDir: dir}, copied: copied, logger: logger}
				r.lease = replication.NewLease(replication.LeaseOptions{
					Client: client, Identity: life, Duration: 10 * time.Second, StaleWait: 30 * time.Second, Claim: r.claim, Now: func() time.Time { return now },
				})
				for begun := now; !r.lease.Status().Leading; now = now.Add(4 * time.Second) {
					if now.Sub(begun) > 10*time.Minute {
						t.Fatalf("the Lease is not taken: %+v", r.lease.Status())
					}
					if err := r.lease.Read(ctx); err != nil {
						t.Fatal(err)
					}
					_ = r.lease.Hold(ctx) // until it may
				}
				if err := copied.Close(); err != nil {
					t.Fatal(err)
				}
				store, err := checkpoint.Open(dir, report)
				if err == nil {
					store, err = r.begin(store, nil, offsetByClock)
				}
				if err != nil {
					t.Fatal(err)
				}
				if r.historyLost != test.lost || store.Clean() != test.wantClean {
					t.Errorf("the %s one: history lost %v, clean %v", life, r.historyLost, store.Clean())
				}
				if least, _ := strconv.ParseUint(test.offset, 10, 64); r.offset.Current() < max(least, 1) {
					t.Errorf("the %s one: the offset is %d", life, r.offset.Current())
				}
				if err := store.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func offsetByClock(last uint64) *source.Offset { return source.NewOffset(last, time.Now) }

// everyone is an API server that takes every token.
type everyone struct{}

func (everyone) Token(context.Context, string) (string, error) { return "token", nil }

func (everyone) Check(context.Context, string, string) error { return nil }

// counter is a participant with something for each commit.
type counter struct{ n int }

func (c *counter) Capture(to *checkpoint.Commit) {
	c.n++
	to.Watches = append(to.Watches, delta.WatchChange{Watch: "w", Meta: fmt.Appendf(nil, `{"position":"%d"}`, c.n)})
}

func (*counter) Committed(map[string]delta.LogSize) {}

func (*counter) Failed() {}

// led is a leader with a state, and a source that commits.
type led struct {
	*replica
	fan    *fanOut
	store  *checkpoint.Store
	client *oneLease
	serves *replication.Leader
	hangs  chan struct{} // closed while commits end
	full   atomic.Bool   // commits fail
}

// Commit fails while the disk is full.
func (l *led) Commit(c *checkpoint.Commit) error {
	if l.full.Load() {
		return syscall.ENOSPC
	}
	return l.store.Commit(c)
}

func (l *led) Logs() map[string]delta.LogSize { return l.store.Logs() }

func (l *led) Info() checkpoint.Info { return l.store.Info() }

func newLed(t *testing.T) *led {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	l := &led{replica: &replica{logger: logger, offset: offsetByClock(0)}, hangs: make(chan struct{})}
	close(l.hangs)
	l.client = &oneLease{lease: &coordinationv1.Lease{}} // one that was given up
	l.client.lease.Annotations = map[string]string{"kubeferry.dev/term": "1", "kubeferry.dev/released": "1"}
	l.lease = replication.NewLease(replication.LeaseOptions{
		Client: l.client, Identity: "leader", Duration: 10 * time.Second, Claim: l.claim, Offset: l.offsetInUse,
	})
	var err error
	if l.copied, err = checkpoint.OpenReplica(t.TempDir(), func(message string, err error) { t.Error(message, err) }); err != nil {
		t.Fatal(err)
	}
	if err := l.lease.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.lease.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.store, err = checkpoint.Open(t.TempDir(), func(message string, err error) { t.Error(message, err) }); err != nil {
		t.Fatal(err)
	}
	l.store.Lead(checkpoint.Stamp{Lineage: "l"}.Begin(l.lease.Status().Term), func(stamp *checkpoint.Stamp, changes []checkpoint.Changes) {
		<-l.hangs
		l.committed.Store(stamp)
		if serves := l.leader.Load(); serves != nil {
			serves.Committed(stamp, changes)
		}
	})
	committer := checkpoint.NewCommitter(l, logger)
	committer.Register(&counter{})
	if err := committer.Begin(); err != nil {
		t.Fatal(err)
	}
	l.committer.Store(committer)
	if l.serves, err = replication.Listen(t.Context(), "127.0.0.1:0", everyone{}, logger); err != nil {
		t.Fatal(err)
	}
	l.leader.Store(l.serves)
	l.serves.Serve(l.store, l.store.Info().Replica.Commit)
	if err := l.lease.Publish(t.Context(), replication.Endpoint{Address: l.serves.Address(), Certificate: l.serves.Certificate()}); err != nil {
		t.Fatal(err)
	}
	l.fan = &fanOut{committer: committer, secure: l.secure}
	t.Cleanup(func() {
		l.serves.Close()
		if err := errors.Join(l.store.Close(), l.copied.Close()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// follow makes a standby, which is in sync and follows until leave is called or the test ends.
func (l *led) follow(t *testing.T, with func(*checkpoint.Replica) replication.Copy) (copied *checkpoint.Replica, leave func()) {
	t.Helper()
	copied, err := checkpoint.OpenReplica(t.TempDir(), func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	lease := replication.NewLease(replication.LeaseOptions{
		Client: l.client, Identity: "standby", Duration: 10 * time.Second, Claim: func() replication.Claim { return replication.Claim{} },
	})
	if err := lease.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	election := replication.NewElection(lease, time.Second, l.logger)
	standby := replication.NewStandby(lease, election, with(copied), everyone{}, 20*time.Millisecond, l.logger)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	before := l.serves.Standbys().InSync
	running.Go(func() { standby.Run(ctx) })
	leave = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(func() {
		leave()
		if err := copied.Close(); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(time.Minute); l.serves.Standbys().InSync == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in sync: %+v", standby.Status())
		}
	}
	return copied, leave
}

func asItIs(copied *checkpoint.Replica) replication.Copy { return copied }

// What a source commits before it sends, so that the next run does not miss it, a standby in sync has too: it may be the next to lead.
func TestASourceCommitsToAStandby(t *testing.T) {
	l := newLed(t)
	copied, _ := l.follow(t, asItIs)
	for checked := 0; checked < 10; { // a standby that does not answer in time, on a busy machine, shows nothing
		begun, inSync := time.Now(), l.serves.Standbys().InSync
		if err := l.fan.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if inSync == 0 || time.Since(begun) > handOverTimeout/2 {
			time.Sleep(time.Millisecond)
			continue
		}
		checked++
		if got, want := copied.Info().Replica.Commit, l.store.Info().Replica.Commit; got < want {
			t.Fatalf("the standby has commit %d, want %d", got, want)
		}
	}
	// Its copy gets older while a commit does not end: the leader leaves if the disk hangs, and not if it is slow.
	l.hangs = make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.committer.Load().Begin(); err != nil {
			t.Error(err)
		}
	})
	expectLeaves(t, l.replica)
	close(l.hangs)
	running.Wait()
}

// A leader whose disk is full keeps its standbys, and leaves to one of them if that lasts.
func TestFullDiskOfTheLeader(t *testing.T) {
	l := newLed(t)
	copied, _ := l.follow(t, asItIs)
	l.config = &config.Config{StateDir: t.TempDir()}
	left := make(chan error, 1)
	l.stop, l.fail = func() {}, func(err error) { left <- err }
	fails := func() {
		t.Helper()
		l.full.Store(true)
		if err := l.committer.Load().Begin(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("got %v", err)
		}
	}
	fails()
	l.full.Store(false)
	if err := l.committer.Load().Begin(); err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if acked := l.serves.AwaitAck(waiting); !acked || l.serves.Standbys().Connected != 1 {
		t.Fatalf("acknowledged: %v; %+v", acked, l.serves.Standbys())
	}
	if got, want := copied.Info().Replica.Commit, l.store.Info().Replica.Commit; got != want {
		t.Errorf("the standby has commit %d, want %d", got, want)
	}
	fails()
	l.leaveIfStuck(waiting, time.Second, time.Minute, time.Minute)
	if err := <-left; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("it left: %v", err)
	}
}

// A replica that takes over on a disk that hangs gives the Lease up, and its probe fails.
func TestTakeoverThatHangs(t *testing.T) {
	expectLeaves(t, &replica{logger: slog.New(slog.DiscardHandler)})
}

// expectLeaves expects that a leader for which it is time to look leaves once its disk hangs.
func expectLeaves(t *testing.T, r *replica) {
	t.Helper()
	r.config = &config.Config{StateDir: t.TempDir()}
	left := make(chan error, 1)
	r.stop, r.fail = func() {}, func(err error) { left <- err }
	health := &health{}
	health.replica.Store(r)
	looking, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	r.leaveIfStuck(looking, time.Minute, 200*time.Millisecond, time.Minute) // a disk that works may be slow, too
	if err := health.healthy(); err != nil || len(left) > 0 {
		t.Errorf("it leaves, and the disk works: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		unfinished, err := os.ReadDir(r.config.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		if len(unfinished) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the small write does not end: %v", unfinished)
		}
	}
	r.config = &config.Config{StateDir: t.TempDir()} // in the other one a write may be under way
	pipe := filepath.Join(r.config.StateDir, "disk-check.new")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil { // without a reader: to open it hangs
		t.Fatal(err)
	}
	r.leaveIfStuck(t.Context(), time.Minute, 200*time.Millisecond, 200*time.Millisecond)
	if err := <-left; health.healthy() == nil || !strings.Contains(err.Error(), "small write") {
		t.Errorf("it left: %v", err)
	}
	reader, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
}
