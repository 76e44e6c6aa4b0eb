package replication_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/replication"
)

// tokens stands for the API server: a token is its audience behind a prefix. test/e2e uses the real one.
type tokens struct{ account string }

func (a tokens) Token(_ context.Context, audience string) (string, error) {
	return a.account + " " + audience, nil
}

func (a tokens) Check(_ context.Context, audience, token string) error {
	if token != "ours "+audience {
		return errors.New("refused")
	}
	return nil
}

// leading is a leader with a store.
type leading struct {
	t      *testing.T
	store  *checkpoint.Store
	leader *replication.Leader
	log    *lockedBuffer
	seq    uint64
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func lead(t *testing.T) *leading {
	t.Helper()
	return leadAs(t, tokens{"ours"})
}

func leadAs(t *testing.T, auth replication.Authenticator) *leading {
	t.Helper()
	store, err := checkpoint.Open(t.TempDir(), func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l := &leading{t: t, store: store, log: &lockedBuffer{}}
	l.leader, err = replication.Listen(t.Context(), "127.0.0.1:0", auth, slog.New(slog.NewTextHandler(l.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.leader.Close)
	serving := false
	store.Lead(checkpoint.Stamp{Lineage: "l"}.Begin(1), func(stamp *checkpoint.Stamp, changes []checkpoint.Changes) {
		if serving {
			l.leader.Committed(stamp, changes)
		}
	})
	l.commit(1)
	serving = true
	l.leader.Serve(store, store.Info().Replica.Commit) // a standby of an idle leader gets no further commit
	return l
}

// commit writes n objects.
func (l *leading) commit(n int) {
	l.t.Helper()
	change := delta.WatchChange{Watch: "w", Meta: []byte(`{}`)}
	for range n {
		l.seq++
		change.Put = append(change.Put, delta.Known{Namespace: "n", Name: fmt.Sprint(l.seq), Version: delta.NewVersion("u", "1")})
	}
	if err := l.store.Commit(&checkpoint.Commit{Watches: []delta.WatchChange{change}}); err != nil {
		l.t.Fatal(err)
	}
}

// follow starts a standby of the leader, which ends with the test.
func follow(t *testing.T, to *leading, copied replication.Copy, account string) *replication.Standby {
	t.Helper()
	_, s, _ := followWith(t, to, copied, account)
	return s
}

// followWith returns its view of the Lease too, and what ends it.
func followWith(t *testing.T, to *leading, copied replication.Copy, account string) (*candidate, *replication.Standby, func()) {
	t.Helper()
	w := newWorld()
	holder := "leader"
	w.lease = &coordinationv1.Lease{}
	w.lease.Spec.HolderIdentity = &holder
	w.lease.Annotations = map[string]string{
		"kubeferry.dev/address": to.leader.Address(), "kubeferry.dev/certificate-sha256": to.leader.Certificate(),
	}
	c := w.candidate("standby", replication.Claim{})
	c.try()
	logger := slog.New(slog.NewTextHandler(to.log, nil))
	election := replication.NewElection(c.Lease, time.Second, logger)
	s := replication.NewStandby(c.Lease, election, copied, tokens{account}, 20*time.Millisecond, logger)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	end := func() {
		cancel()
		<-ended
	}
	t.Cleanup(end)
	return c, s, end
}

func replicaIn(t *testing.T, dir string) *checkpoint.Replica {
	t.Helper()
	r, err := checkpoint.OpenReplica(dir, func(message string, err error) { t.Log(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// TestStandbyFollows copies a state while commits go on, and is there with each of them.
func TestStandbyFollows(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("", func(t *testing.T) {
		l := lead(t)
		l.commit(20_000) // several ranges
		dir := t.TempDir()
		r := replicaIn(t, dir)
		s := follow(t, l, r, "ours")
		for range 100 {
			l.commit(10)
		}
		eventually(t, "in sync", func() bool { return l.leader.Standbys().InSync == 1 && s.Status().InSync })
		for range 20 {
			l.commit(10)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if !l.leader.AwaitAck(ctx) {
			t.Fatal("the last commit is not acknowledged")
		}
		if got, want := r.Info().Replica.Commit, l.store.Info().Replica.Commit; got != want {
			t.Errorf("the copy is at commit %d, want %d", got, want)
		}
		l.leader.Close()
		eventually(t, "it notices that the leader is gone", func() bool { return !s.Status().InSync })
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		copied, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
		if err != nil {
			t.Fatal(err)
		}
		defer copied.Close()
		n := uint64(0)
		if err := copied.Known("w", func(delta.Known) { n++ }); err != nil || n != l.seq {
			t.Errorf("%d objects in the copy, want %d; %v", n, l.seq, err)
		}
	})
}

// TestLeaderIsCutOff: a standby leaves a leader that goes on sending, once the Lease names another.
func TestLeaderIsCutOff(t *testing.T) {
	former, next := lead(t), lead(t)
	r := replicaIn(t, t.TempDir())
	lease, s, _ := followWith(t, former, r, "ours")
	eventually(t, "in sync with the former leader", func() bool { return s.Status().InSync && former.leader.Standbys().InSync == 1 })
	next.commit(10)
	lease.world.edit(func(l *coordinationv1.Lease) {
		holder := "next"
		l.Spec.HolderIdentity = &holder
		l.Annotations["kubeferry.dev/address"] = next.leader.Address()
		l.Annotations["kubeferry.dev/certificate-sha256"] = next.leader.Certificate()
	})
	lease.try() // reads it
	eventually(t, "in sync with the next leader", func() bool { return next.leader.Standbys().InSync == 1 && former.leader.Standbys().Connected == 0 })
	if got, want := r.Info().Replica.Commit, next.store.Info().Replica.Commit; got != want {
		t.Errorf("the copy is at commit %d, want %d", got, want)
	}
}

// slowReviews takes long to check a token.
type slowReviews struct {
	tokens
	entered chan struct{}
}

func (a slowReviews) Check(ctx context.Context, _, _ string) error {
	select {
	case a.entered <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return ctx.Err()
}

// A standby that takes the Lease leaves a former leader at once that has not answered its hello: it leads behind that.
func TestHelloEndsWithTheStandby(t *testing.T) {
	auth := slowReviews{tokens{"ours"}, make(chan struct{}, 1)}
	_, _, end := followWith(t, leadAs(t, auth), replicaIn(t, t.TempDir()), "ours")
	<-auth.entered
	begun := time.Now()
	if end(); time.Since(begun) > 4*time.Second { // a hello may take 5 s
		t.Errorf("it takes %v", time.Since(begun))
	}
}

// TestTwoStandbys are each in sync, and one that ends is no more.
func TestTwoStandbys(t *testing.T) {
	l := lead(t)
	for n := range 2 {
		follow(t, l, replicaIn(t, t.TempDir()), "ours")
		eventually(t, "in sync", func() bool { return l.leader.Standbys().InSync == n+1 })
	}
}

// slowCopy takes nothing once it is whole.
type slowCopy struct {
	*checkpoint.Replica
	mu    sync.Mutex
	whole bool
	until chan struct{}
}

func (c *slowCopy) EndCopy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.whole = true
	return c.Replica.EndCopy()
}

func (c *slowCopy) Apply(changes []checkpoint.Changes) error {
	c.mu.Lock()
	whole := c.whole
	c.mu.Unlock()
	if whole {
		<-c.until
	}
	return c.Replica.Apply(changes)
}

// TestSlowStandby is dropped when too much waits for it: the leader does not wait. It begins a new copy.
func TestSlowStandby(t *testing.T) {
	l := lead(t)
	slow := &slowCopy{Replica: replicaIn(t, t.TempDir()), until: make(chan struct{})}
	follow(t, l, slow, "ours")
	goOn := sync.OnceFunc(func() { close(slow.until) })
	t.Cleanup(goOn)
	eventually(t, "in sync", func() bool { return l.leader.Standbys().InSync == 1 })
	large := delta.WatchChange{Watch: "w", Meta: []byte(`"` + strings.Repeat("x", 4<<20) + `"`)}
	for range 40 {
		if err := l.store.Commit(&checkpoint.Commit{Watches: []delta.WatchChange{large}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "dropped", func() bool { return strings.Contains(l.log.String(), "the standby is too slow") })
	goOn()
	eventually(t, "in sync again", func() bool { return l.leader.Standbys().InSync == 1 })
}

// TestForgedLeader is named by the Lease, and takes tokens without a look at them; but it has none of the replicas' ServiceAccount.
func TestForgedLeader(t *testing.T) {
	for name, forger := range map[string]replication.Authenticator{
		"with a token of its own":         credulous{"another's"},
		"which sends the standby's back":  &echo{},
		"without the right to any tokens": credulous{""},
	} {
		t.Run(name, func(t *testing.T) {
			l := leadAs(t, forger)
			s := follow(t, l, replicaIn(t, t.TempDir()), "ours")
			eventually(t, "refused", func() bool { return strings.Contains(l.log.String(), "no replica") })
			if s.Status().InSync {
				t.Error("it has taken a state")
			}
		})
	}
}

// credulous takes every token.
type credulous struct{ account string }

func (c credulous) Token(_ context.Context, audience string) (string, error) {
	return c.account + " " + audience, nil
}

func (credulous) Check(context.Context, string, string) error { return nil }

// echo has the tokens of those who came.
type echo struct {
	mu   sync.Mutex
	last string
}

func (e *echo) Token(context.Context, string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last, nil
}

func (e *echo) Check(_ context.Context, _, token string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = token
	return nil
}

// TestStrangers are refused, bounded, and logged once.
func TestStrangers(t *testing.T) {
	l := lead(t)
	follow(t, l, replicaIn(t, t.TempDir()), "another's")
	eventually(t, "refused", func() bool { return strings.Contains(l.log.String(), "is refused") })
	var idle []net.Conn
	before := openFiles(t)
	for range 500 {
		conn, err := net.Dial("tcp", l.leader.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		idle = append(idle, conn)
		if most := openFiles(t) - before - len(idle); most > 40 {
			t.Fatalf("%d connections take the leader %d files", len(idle), most)
		}
	}
	follow(t, l, replicaIn(t, t.TempDir()), "ours")
	eventually(t, "a standby gets through", func() bool { return l.leader.Standbys().InSync == 1 })
	if n := strings.Count(l.log.String(), "a connection to the port for standbys is refused"); n > 2 {
		t.Errorf("%d lines in the log", n)
	}
	// The oldest were closed to make room.
	_ = idle[0].SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := idle[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("the oldest idle connection: %v", err)
	}
}

// openFiles counts the files that the process has open, where there is a /proc.
func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return len(files)
}

// testLostWhileClosing: a replica that is being stopped cancels its deliveries when its Lease ends, and when it is lost before.
func testLostWhileClosing(t *testing.T) {
	t.Helper()
	left := make(chan time.Duration, 1)
	left <- time.Hour
	permit := replication.NewPermit(func() time.Duration {
		now := <-left
		left <- now
		return now
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { permit.Run(ctx, func(bool) {}) })
	defer running.Wait()
	defer cancel()
	call, leave, err := permit.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() { permit.Close(t.Context()) })
	if !permit.MayGoOn() {
		t.Error("a delivery under way may not go on")
	}
	<-left
	left <- 0
	if permit.MayGoOn() {
		t.Error("a delivery may go on after the Lease was lost")
	}
	select {
	case <-call.Done():
	case <-time.After(20 * time.Second):
		t.Error("a delivery goes on after the Lease was lost")
	}
	if !leave() {
		t.Error("it did not cut the delivery short")
	}
}

// A permit lets deliveries begin while it is granted, cancels them when it is withdrawn, and lets none begin once it is closed.
func TestPermit(t *testing.T) {
	var mu sync.Mutex
	left := time.Duration(0)
	set := func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		left = d
	}
	permit := replication.NewPermit(func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return left
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { permit.Run(ctx, func(bool) {}) })
	defer running.Wait()
	defer cancel()

	short, cancelShort := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancelShort()
	if _, _, err := permit.Enter(short); err == nil {
		t.Fatal("it lets a delivery begin while it is not granted")
	}
	set(100 * time.Millisecond)
	call, leave, err := permit.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set(0)
	<-call.Done()
	if !leave() {
		t.Error("it did not cut the delivery short")
	}
	set(time.Hour)
	if _, leave, err = permit.Enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	set(0)
	if !leave() { // at once, as in a process that goes on after its Lease ended
		t.Error("a delivery that ends before the permit is withdrawn does not count as cut short")
	}
	set(time.Hour)
	if _, leave, err = permit.Enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		permit.Close(t.Context())
	}()
	select {
	case <-closed:
		t.Fatal("closed while a delivery is under way")
	case <-time.After(50 * time.Millisecond):
	}
	if leave() {
		t.Error("closing cuts a delivery short")
	}
	<-closed
	testLostWhileClosing(t)
	again, cancelAgain := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancelAgain()
	if _, _, err := permit.Enter(again); err == nil {
		t.Error("it lets a delivery in after it was closed")
	}
}

// noRoom is a copy on a disk that has no room for what follows.
type noRoom struct {
	*checkpoint.Replica
	whole  atomic.Bool
	copies atomic.Int64
}

func (c *noRoom) BeginCopy() error {
	c.whole.Store(false)
	c.copies.Add(1)
	return c.Replica.BeginCopy()
}

func (c *noRoom) EndCopy() error {
	c.whole.Store(true)
	return c.Replica.EndCopy()
}

func (c *noRoom) Apply(changes []checkpoint.Changes) error {
	if c.whole.Load() {
		return errors.New("no room")
	}
	return c.Replica.Apply(changes)
}

// A standby that gets a whole copy each time, and cannot follow, does not keep the leader busy.
func TestCopyAgainAndAgain(t *testing.T) {
	l := lead(t)
	c := &noRoom{Replica: replicaIn(t, t.TempDir())}
	follow(t, l, c, "ours")
	begun := time.Now()
	for ; time.Since(begun) < 2*time.Second; time.Sleep(20 * time.Millisecond) {
		l.commit(1)
	}
	n, took, most := c.copies.Load(), time.Since(begun), int64(2)
	for pause, left := 20*time.Millisecond, took; pause <= left; pause *= 2 {
		left -= pause
		most++ // 8 in 2 s
	}
	if n > most {
		t.Errorf("%d copies in %v, want at most %d", n, took, most)
	}
}
