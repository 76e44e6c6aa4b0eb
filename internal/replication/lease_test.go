package replication_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/replication"
)

// leases is an API server that holds one Lease. test/e2e runs the real one; here the clock is ours.
type leases struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	away    bool
	// lostAnswer makes the next write take effect although its sender gets an error.
	lostAnswer bool
	// fails are the answers to the next updates, which have no effect.
	fails []error
	// changed is when the Lease was written last, if there is a clock.
	changed time.Time
	clock   func() time.Time
}

var leaseResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (l *leases) Get(context.Context, string) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.away:
		return nil, errors.New("away")
	case l.lease == nil:
		return nil, apierrors.NewNotFound(leaseResource, "l")
	}
	return l.lease.DeepCopy(), nil
}

func (l *leases) Create(_ context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease != nil {
		return nil, apierrors.NewAlreadyExists(leaseResource, "l")
	}
	return l.put(lease, types.UID("uid"+strconv.Itoa(l.version)))
}

func (l *leases) Update(_ context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.fails) > 0:
		err := l.fails[0]
		l.fails = l.fails[1:]
		return nil, err
	case l.lease == nil:
		return nil, apierrors.NewNotFound(leaseResource, "l")
	case lease.ResourceVersion != l.lease.ResourceVersion || lease.UID != l.lease.UID:
		return nil, apierrors.NewConflict(leaseResource, "l", errors.New("it has changed"))
	}
	return l.put(lease, l.lease.UID)
}

func (l *leases) put(lease *coordinationv1.Lease, uid types.UID) (*coordinationv1.Lease, error) {
	if l.away {
		return nil, errors.New("away")
	}
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds <= 0 {
		return nil, apierrors.NewBadRequest("spec.leaseDurationSeconds: must be greater than 0")
	}
	l.next()
	l.lease = lease.DeepCopy()
	l.lease.UID, l.lease.ResourceVersion = uid, strconv.Itoa(l.version)
	if l.lostAnswer {
		l.lostAnswer = false
		return nil, errors.New("the answer is lost")
	}
	return l.lease.DeepCopy(), nil
}

// edit changes the Lease as `kubectl edit` does.
func (l *leases) edit(change func(*coordinationv1.Lease)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next()
	l.lease = l.lease.DeepCopy()
	l.lease.ResourceVersion = strconv.Itoa(l.version)
	change(l.lease)
}

// next counts a write.
func (l *leases) next() {
	if l.version++; l.clock != nil {
		l.changed = l.clock()
	}
}

// world is an API server and a clock.
type world struct {
	leases
	now time.Time
}

const duration = 10 * time.Second

// candidate is a process that tries to get the Lease.
type candidate struct {
	*replication.Lease
	world  *world
	name   string
	claim  replication.Claim
	offset uint64
	lasts  time.Duration // how long the Lease is valid for it
}

func (w *world) candidate(name string, claim replication.Claim) *candidate {
	return w.candidateWith(name, claim, duration)
}

func (w *world) candidateWith(name string, claim replication.Claim, lasts time.Duration) *candidate {
	c := &candidate{world: w, name: name, claim: claim, lasts: lasts}
	c.Lease = replication.NewLease(replication.LeaseOptions{
		Client: &w.leases, Name: "l", Namespace: "n", Identity: name, Cluster: "c", ClusterUID: "u", Duration: lasts, StaleWait: 30 * time.Second,
		Claim: func() replication.Claim { return c.claim }, Offset: func() uint64 { return c.offset }, Now: func() time.Time { return w.now },
	})
	return c
}

// try does what an election does at each attempt, and reports whether the Lease is held behind it. It panics if the candidate takes the
// Lease before the rule of waits allows it.
func (c *candidate) try() bool {
	w := c.world
	leading, before, changed := c.Status().Leading, w.lease, w.changed
	if err := c.Read(context.Background()); err != nil && !apierrors.IsNotFound(err) {
		return false
	}
	held := c.Hold(context.Background()) == nil
	if taken := before != nil && w.lease != before && *w.lease.Spec.HolderIdentity == c.name; taken && !leading {
		if wait, waited := c.mustWait(before), w.now.Sub(changed); waited < wait {
			panic(fmt.Sprintf("%s with %+v takes a Lease %v after it changed, and must wait for %v: %+v", c.name, c.claim, waited, wait, before))
		}
	}
	return held
}

// mustWait is the rule: for how long a Lease must have been as it is before the candidate may take it.
func (c *candidate) mustWait(lease *coordinationv1.Lease) (wait time.Duration) {
	a := lease.Annotations
	if a["kubeferry.dev/term"] == "" || a["kubeferry.dev/term"] != a["kubeferry.dev/released"] || *lease.Spec.HolderIdentity != "" {
		wait = c.lasts
	}
	var term, commit uint64
	_, _ = fmt.Sscanf(a["kubeferry.dev/commit"], "%d/%d", &term, &commit)
	if term > uint64(c.world.now.UnixMicro())+1<<60 { // forged, and counts as missing
		term = 0
	}
	lineage, claim := a["kubeferry.dev/lineage"], c.claim
	switch {
	case lineage == "":
		return wait
	case claim.Lineage == "":
		return wait + 5*time.Minute
	case claim.Lineage != lineage || claim.Term < term || claim.Term == term && claim.Commit < commit:
		return wait + 30*time.Second
	default:
		return wait
	}
}

// begin is the first commit of a leader, and the renewal that names it.
func (c *candidate) begin(t *testing.T) {
	t.Helper()
	c.claim.Term, c.claim.Commit = c.Status().Term, c.claim.Commit+1
	if !c.try() {
		t.Fatalf("%s cannot renew: %+v", c.name, c.Status())
	}
}

// taken lets time pass until the candidate has the Lease, and returns how long that took.
func (c *candidate) taken(t *testing.T) time.Duration {
	t.Helper()
	begun := c.world.now
	for !c.try() {
		if c.world.now = c.world.now.Add(time.Second); c.world.now.Sub(begun) > 10*time.Minute {
			t.Fatalf("%s has not got the Lease", c.name)
		}
	}
	return c.world.now.Sub(begun)
}

// leads is taken, and the Lease names what it has as a commit of its own.
func (c *candidate) leads(t *testing.T) time.Duration {
	t.Helper()
	after := c.taken(t)
	c.world.names(c.claim)
	return after
}

// names makes the Lease name a commit.
func (w *world) names(claim replication.Claim) {
	w.edit(func(l *coordinationv1.Lease) {
		l.Annotations["kubeferry.dev/commit"] = fmt.Sprintf("%d/%d", claim.Term, claim.Commit)
	})
}

func newWorld() *world {
	w := &world{now: time.Unix(1e9, 0)}
	w.clock = func() time.Time { return w.now }
	return w
}

func state(lineage string, term, commit uint64) replication.Claim {
	return replication.Claim{Lineage: lineage, Term: term, Commit: commit}
}

// TestWhoMayLead has a leader of a state die, and others with other states take over.
func TestWhoMayLead(t *testing.T) {
	last := state("l", 4, 100)
	for _, test := range []struct {
		name     string
		claim    replication.Claim
		released bool
		want     time.Duration
		behind   bool
	}{
		{"at the Lease", last, false, duration, false},
		{"beyond it", state("l", 4, 101), false, duration, false},
		{"of a later term", state("l", 5, 3), false, duration, false},
		{"one commit behind", state("l", 4, 99), false, duration + 30*time.Second, true},
		{"of an earlier term", state("l", 3, 500), false, duration + 30*time.Second, true},
		{"of another lineage", state("k", 9, 500), false, duration + 30*time.Second, true},
		{"empty", replication.Claim{}, false, duration + 5*time.Minute, true},
		{"given up", last, true, 0, false},
		{"given up, one commit behind", state("l", 4, 99), true, 30 * time.Second, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			leader := w.candidate("leader", state("l", 4, 90))
			leader.taken(t)
			leader.claim = last
			if !leader.try() {
				t.Fatal("no renewal")
			}
			if test.released {
				if err := leader.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			w.names(last)
			next := w.candidate("next", test.claim)
			if got := next.taken(t); got != test.want {
				t.Errorf("taken after %v, want %v", got, test.want)
			}
			status := next.Status()
			if status.Term <= leader.Status().Term || status.Behind != test.behind || status.Before != last {
				t.Errorf("%+v, want a term above %d, behind %v", status, leader.Status().Term, test.behind)
			}
			if leader.try() {
				t.Error("the former leader has the Lease again")
			}
			if !test.released && !errors.Is(leader.Status().Err, replication.ErrLost) {
				t.Errorf("the former leader has not noticed: %+v", leader.Status())
			}
		})
	}
}

// TestEndsBeforeItsFirstCommit has a replica that is behind the Lease take it in the end, renew it, and die or give it up before it has a
// commit of its own. Nothing was delivered, so the next one finds what the last leader had.
func TestEndsBeforeItsFirstCommit(t *testing.T) {
	last := state("l", 4, 100)
	for name, claim := range map[string]replication.Claim{"empty": {}, "one commit behind": state("l", 4, 99)} {
		for _, released := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, given up %v", name, released), func(t *testing.T) {
				w := newWorld()
				w.candidate("leader", last).leads(t)
				first := w.candidate("first", claim)
				want := first.taken(t)
				if !first.try() {
					t.Fatal("no renewal")
				}
				if released {
					want -= duration
					if err := first.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				next := w.candidate("next", claim)
				if got := next.taken(t); got != want {
					t.Errorf("taken after %v, want %v", got, want)
				}
				if s := next.Status(); s.Before != last || !s.Behind {
					t.Errorf("%+v, want %+v before, and that this one's is older", s, last)
				}
				next.claim = state("new", next.Status().Term, 1)
				next.try()
				if after := w.candidate("after", next.claim); after.taken(t) != duration || after.Status().Before != next.claim {
					t.Errorf("%+v, want %+v, which was committed", after.Status(), next.claim)
				}
			})
		}
	}
}

// TestFailsBeforeEachFirstCommit has the replica with the newest state take the Lease and give it up again and again, without a commit. The
// kubelet starts it later each time. Another one leads in the first pause that is longer than its wait.
func TestFailsBeforeEachFirstCommit(t *testing.T) {
	for name, test := range map[string]struct {
		claim replication.Claim
		wait  time.Duration
	}{
		"older": {state("l", 4, 9), 30 * time.Second},
		"empty": {replication.Claim{}, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			last, w := state("l", 4, 10), newWorld()
			w.candidate("leader", last).leads(t)
			next := w.candidate("next", test.claim)
			for n, pause := 0, 10*time.Second; ; n, pause = n+1, min(2*pause, 5*time.Minute) {
				failing := w.candidate(fmt.Sprint("failing-", n), last)
				for !failing.try() {
					next.try()
					w.now = w.now.Add(time.Second)
				}
				for range 15 {
					if next.try() {
						t.Fatal("it takes a Lease that is held")
					}
					w.now = w.now.Add(time.Second)
					failing.try()
				}
				if err := failing.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				begun := w.now
				for w.now.Sub(begun) < pause && !next.try() {
					w.now = w.now.Add(time.Second)
				}
				if led := next.try(); led != (pause >= test.wait) {
					t.Fatalf("in a pause of %v it leads: %v", pause, led)
				}
				if s := next.Status(); s.Leading {
					if waited := w.now.Sub(begun); waited != test.wait || !s.Behind || s.Before != last {
						t.Errorf("it leads after %v: %+v", waited, s)
					}
					return
				}
			}
		})
	}
}

// A leader that has a commit, and renews the Lease without another one, is at work: who is behind waits anew.
func TestRenewalsOfALeaderBeginTheWaitAnew(t *testing.T) {
	w := newWorld()
	leader := w.candidate("leader", state("l", 4, 10))
	leader.taken(t)
	leader.begin(t)
	next := w.candidate("next", state("l", 4, 9))
	for range 60 {
		if next.try() {
			t.Fatal("it takes a Lease that is held")
		}
		w.now = w.now.Add(time.Second)
		leader.try()
	}
	if err := leader.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := next.taken(t); got != 30*time.Second {
		t.Errorf("taken after %v", got)
	}
}

// TestLeaseMadeAnew is taken only after it was seen for as long as a leader may count on the one before.
func TestLeaseMadeAnew(t *testing.T) {
	for name, make := range map[string]func(w *world){
		"deleted": func(w *world) { w.lease = nil },
		"deleted and made by hand": func(w *world) {
			w.lease = nil
			if _, err := w.Create(context.Background(), &coordinationv1.Lease{}); err != nil {
				panic(err)
			}
		},
		"without its holder": func(w *world) { w.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			leader := w.candidate("leader", state("l", 1, 1))
			if got := leader.taken(t); got != duration {
				t.Errorf("the first one waits for %v", got)
			}
			leader.begin(t)
			standby := w.candidate("standby", leader.claim)
			standby.try()
			make(w)
			if standby.try() {
				t.Fatal("a standby takes the Lease at once")
			}
			if !leader.try() || leader.Left() <= 0 || leader.Status().Err != nil {
				t.Fatalf("the leader does not take it again: %+v", leader.Status())
			}
			term := leader.Status().Term
			make(w)
			if got := standby.taken(t); got != duration {
				t.Errorf("a standby takes it after %v", got)
			}
			if standby.Status().Term <= term {
				t.Errorf("term %d behind %d", standby.Status().Term, term)
			}
		})
	}
}

// TestShorterDuration comes with a rollout, while the leader of before is cut off from the API server and counts on a longer one.
func TestShorterDuration(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"not renewed":        func(*world) {},
		"deleted":            func(w *world) { w.lease = nil },
		"without its holder": func(w *world) { w.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }) },
		"made by hand": func(w *world) {
			second := int32(1)
			w.edit(func(l *coordinationv1.Lease) {
				l.UID, l.Annotations, l.Spec = "another", nil, coordinationv1.LeaseSpec{LeaseDurationSeconds: &second}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			leader := w.candidateWith("leader", state("l", 1, 1), time.Minute)
			leader.taken(t)
			leader.begin(t)
			standby, other := w.candidate("standby", leader.claim), w.candidate("other", leader.claim)
			standby.try()
			other.try()
			change(w)
			if got := standby.taken(t); got != time.Minute || leader.Left() > 0 {
				t.Errorf("a standby takes the Lease after %v, and the leader may deliver for %v", got, leader.Left())
			}
			other.try()
			w.lease = nil
			if got := other.taken(t); got != duration {
				t.Errorf("the other one takes it from the shorter after %v", got)
			}
		})
	}
}

// A duration that was written by hand does not keep all from leading for longer than a leader's may last, corrected or not.
func TestLongDurationByHand(t *testing.T) {
	for name, correct := range map[string]func(w *world){
		"not corrected":      func(*world) {},
		"deleted":            func(w *world) { w.lease = nil },
		"without its holder": func(w *world) { w.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			leader := w.candidate("leader", state("l", 1, 1))
			leader.leads(t)
			day := int32(86400)
			w.edit(func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = &day })
			standby := w.candidate("standby", leader.claim)
			standby.try()
			correct(w)
			standby.taken(t) // within 10 minutes
		})
	}
}

// TestTermsGrow although an empty replica makes a deleted Lease anew, and then one leads that saw none of the leaders between.
func TestTermsGrow(t *testing.T) {
	w := newWorld()
	first := w.candidate("first", state("l", 1, 1))
	first.taken(t)
	late := state("l", first.Status().Term, 1)
	second := w.candidate("second", late)
	second.taken(t)
	w.lease = nil
	empty := w.candidate("empty", replication.Claim{})
	empty.taken(t)
	third := w.candidate("third", late)
	third.taken(t)
	ahead := w.candidate("ahead", state("l", 1<<60, 1)) // the clock was wrong
	ahead.taken(t)
	last := w.candidate("last", late)
	last.taken(t)
	term := uint64(0)
	for _, c := range []*candidate{first, second, empty, third, ahead, last} {
		if next := c.Status().Term; next <= term {
			t.Errorf("%s leads in term %d after %d", c.name, next, term)
		} else {
			term = next
		}
	}
	if term != 1<<60+2 {
		t.Errorf("the last term is %d, want two above what the Lease and the state say", term)
	}
}

// TestForgedTerms forges the term that a leader is in, up to the highest that counts, and beyond. The terms that follow
// rise all the same, and the state of their leaders counts.
func TestForgedTerms(t *testing.T) {
	start := uint64(newWorld().now.UnixMicro())
	// A leader takes the Lease at the earliest a duration later.
	for _, forged := range []uint64{1 << 60, start + uint64(duration.Microseconds()) + 1<<60, start + 1<<61, 1<<62 - 1, 1 << 62, 1<<62 + 1, math.MaxUint64 - 1, math.MaxUint64} {
		t.Run(strconv.FormatUint(forged, 10), func(t *testing.T) {
			w := newWorld()
			w.candidate("first", state("l", 1, 1)).taken(t)
			w.edit(func(l *coordinationv1.Lease) {
				l.Annotations["kubeferry.dev/term"] = strconv.FormatUint(forged, 10)
				l.Annotations["kubeferry.dev/commit"] = strconv.FormatUint(forged, 10) + "/1"
			})
			var term uint64
			for n := range 4 {
				next := w.candidate("next-"+strconv.Itoa(n), state("l", term, 1))
				next.taken(t)
				if got := next.Status().Term; got <= term {
					t.Fatalf("term %d after %d", got, term)
				} else {
					term = got
				}
				w.now = w.now.Add(time.Microsecond)
				next.claim = state("l", term, 1)
				if !next.try() {
					t.Fatalf("no renewal: %+v", next.Status())
				}
				behind := w.candidate("behind", state("l", term-1, 9))
				if got := behind.taken(t); got != duration+30*time.Second {
					t.Fatalf("one that is behind leads after %v: what the Lease says of the leader's state counts as missing", got)
				}
				if got := behind.Status().Term; got <= term {
					t.Fatalf("term %d after %d", got, term)
				} else {
					term = got
				}
			}
		})
	}
}

// TestTakenByHand makes the leader stop at once, and the others wait.
func TestTakenByHand(t *testing.T) {
	w := newWorld()
	leader := w.candidate("leader", state("l", 1, 1))
	leader.leads(t)
	standby := w.candidate("standby", state("l", 1, 1))
	standby.try()
	somebody := "somebody"
	w.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &somebody })
	if leader.try() || leader.Left() > 0 || !errors.Is(leader.Status().Err, replication.ErrLost) {
		t.Errorf("%+v", leader.Status())
	}
	select {
	case <-leader.Lost():
	default:
		t.Error("Lost is not closed")
	}
	if got := standby.taken(t); got != duration {
		t.Errorf("taken after %v", got)
	}
}

// TestGivenByHand names a standby in the Lease, as an operator might so that it leads: it waits as for any other holder, and leads in a term of
// its own.
func TestGivenByHand(t *testing.T) {
	w := newWorld()
	leader := w.candidate("leader", state("l", 1, 1))
	leader.leads(t)
	leader.begin(t)
	standby := w.candidate("standby", state("l", 1, 0))
	standby.try()
	w.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &standby.name })
	if standby.try() && leader.Left() > 0 {
		t.Errorf("it leads in term %d, and the leader, in term %d, may deliver for %v", standby.Status().Term, leader.Status().Term, leader.Left())
	}
	if leader.try() || !errors.Is(leader.Status().Err, replication.ErrLost) {
		t.Errorf("the leader has not noticed: %+v", leader.Status())
	}
	if got := standby.taken(t); got != duration+30*time.Second {
		t.Errorf("taken after %v, by one that is behind", got)
	}
	if s := standby.Status(); s.Term <= leader.Status().Term || !s.Behind {
		t.Errorf("%+v, want a term above %d, and that its state is older", s, leader.Status().Term)
	}
}

// TestValidity is counted from before the renewal was sent, and a Lease that never changed hands is renewed after its end.
func TestValidity(t *testing.T) {
	w := newWorld()
	leader := w.candidate("leader", state("l", 1, 1))
	if leader.Left() != 0 {
		t.Error("valid before it was taken")
	}
	leader.taken(t)
	if leader.Left() > 0 {
		t.Error("valid before its first commit")
	}
	leader.begin(t)
	if got := leader.Left(); got != duration-time.Second {
		t.Errorf("%v left, want a second less than the duration", got)
	}
	w.away = true
	w.now = w.now.Add(duration)
	if leader.try() || leader.Left() > 0 || leader.Status().Err != nil {
		t.Errorf("%v left, %+v", leader.Left(), leader.Status())
	}
	w.away = false
	w.now = w.now.Add(time.Minute)
	if !leader.try() || leader.Left() <= 0 {
		t.Errorf("it does not go on: %+v", leader.Status())
	}
	leader.offset++
	if leader.Left() > 0 {
		t.Error("valid before the Lease names the offset")
	}
	if err := leader.PublishOffset(t.Context()); err != nil || leader.Left() <= 0 {
		t.Errorf("not valid though the Lease names the offset: %v", err)
	}
	version := w.version
	if err := leader.PublishOffset(t.Context()); err != nil || w.version != version {
		t.Errorf("err = %v, %d writes of what the Lease names already", err, w.version-version)
	}
}

// TestValidityByBothClocks: a machine that slept has counted the wall time only, and one whose clock was set back the monotonic time only.
func TestValidityByBothClocks(t *testing.T) {
	for _, test := range []struct{ passed, set time.Duration }{{0, time.Hour}, {duration, -time.Hour}} {
		w := &world{now: time.Now()}
		leader := w.candidate("leader", state("l", 1, 1))
		leader.taken(t)
		leader.begin(t)
		w.now = w.now.Add(test.passed)
		before := w.now
		*(*uint64)(unsafe.Pointer(&w.now)) += uint64(test.set/time.Second) << 30 // the seconds of the wall time
		if w.now.Sub(before) != 0 || w.now.Round(0).Sub(before.Round(0)) != test.set {
			t.Fatalf("package time has changed: %v, %v", before, w.now)
		}
		if left := leader.Left(); left > 0 {
			t.Errorf("%v later, with the clock set by %v: valid for %v", test.passed, test.set, left)
		}
	}
}

// TestServerWasAway gives the leader the time to renew: the others do not take the Lease as soon as the API server is back.
func TestServerWasAway(t *testing.T) {
	w := newWorld()
	leader, standby := w.candidate("leader", state("l", 1, 1)), w.candidate("standby", state("l", 1, 1))
	leader.taken(t)
	standby.try()
	w.away = true
	for range 30 {
		w.now = w.now.Add(time.Second)
		if leader.try() || standby.try() {
			t.Fatal("taken from a server that is away")
		}
	}
	w.away = false
	if standby.try() {
		t.Error("a standby takes the Lease as soon as the API server is back")
	}
	if !leader.try() {
		t.Errorf("the leader does not go on: %+v", leader.Status())
	}
}

// An API server that is away for a moment again and again does not keep an empty replica from leading: that time does not count, but the
// wait does not begin anew.
func TestServerIsAwayAgainAndAgain(t *testing.T) {
	w := newWorld()
	w.candidate("leader", state("l", 1, 1)).leads(t)
	standby := w.candidate("standby", replication.Claim{})
	begun := w.now
	for second := 1; !standby.try(); second++ {
		if w.now = w.now.Add(time.Second); w.now.Sub(begun) > 8*time.Minute {
			t.Fatalf("it does not lead: %v", standby.Status().Waiting)
		}
		w.away = second%60 < 6
	}
	if got := w.now.Sub(begun); got < 5*time.Minute+duration+5*7*time.Second {
		t.Errorf("it leads after %v: the time without an answer counts", got)
	}
}

// An API server comes and goes after a leader has died. Only the time counts in which it answers: the newest state leads first, and an older
// one if there is no other.
func TestNewestLeadsWhileTheServerComesAndGoes(t *testing.T) {
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprintf("alone %v", alone), func(t *testing.T) {
			w := newWorld()
			last := state("l", 1, 1)
			w.candidate("leader", last).leads(t)
			older, newest := w.candidate("older", state("l", 1, 0)), w.candidate("newest", last)
			answers := 0 // seconds
			for second := range 300 {
				if w.away = second%15 >= 8; !w.away {
					answers++
				}
				switch {
				case older.try():
					if !alone || answers < 40 {
						t.Errorf("the older one leads behind %d s with answers", answers)
					}
					return
				case !alone && newest.try():
					return
				}
				w.now = w.now.Add(time.Second)
			}
			t.Errorf("not taken: %+v, %+v", older.Status(), newest.Status())
		})
	}
}

// TestAnswerIsLost when the Lease is taken: the replica does not lead, and takes the Lease again once that has ended.
func TestAnswerIsLost(t *testing.T) {
	w := newWorld()
	first := w.candidate("first", state("l", 1, 1))
	first.leads(t)
	next := w.candidate("next", first.claim)
	for range duration / time.Second {
		next.try()
		w.now = w.now.Add(time.Second)
	}
	w.lostAnswer = true
	if next.try() || next.Left() > 0 || *w.lease.Spec.HolderIdentity != "next" {
		t.Errorf("the answer was not lost: %+v", w.lease.Spec)
	}
	if got := next.taken(t); got != duration || next.Status().Term <= first.Status().Term {
		t.Errorf("taken after %v: %+v", got, next.Status())
	}
	if status := next.Status(); status.Before != first.claim || status.Behind {
		t.Errorf("%+v, want the state of the leader before", status)
	}
	if next.begin(t); next.Left() <= 0 {
		t.Error("not valid after its first commit")
	}
}

// TestReleaseIsTriedAgain while the API server has a fault that passes: else the next leader waits for the end of the Lease.
func TestReleaseIsTriedAgain(t *testing.T) {
	changed := apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
	forbidden := apierrors.NewForbidden(leaseResource, "l", errors.New("no"))
	for _, test := range []struct {
		name  string
		fault func(w *world)
		want  error
		left  int // of the faults
	}{
		{"errors", func(w *world) { w.fails = []error{changed, errors.New("connection reset by peer"), changed} }, nil, 0},
		{"a lost answer", func(w *world) { w.lostAnswer = true }, nil, 0},
		{"no right", func(w *world) { w.fails = []error{forbidden, changed} }, forbidden, 1},
		{"no end", func(w *world) { w.fails = slices.Repeat([]error{changed}, 1000) }, changed, 1000 - 17},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				leader := w.candidate("leader", state("l", 1, 1))
				leader.taken(t)
				leader.begin(t)
				test.fault(w)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if err := leader.Release(ctx); !errors.Is(err, test.want) || len(w.fails) != test.left {
					t.Errorf("got %v, want %v; %d faults left, want %d", err, test.want, len(w.fails), test.left)
				}
				if next := w.candidate("next", leader.claim); next.try() != (test.want == nil) {
					t.Errorf("the next one: %+v", next.Status())
				}
			})
		})
	}
}

// A replica that does not lead sends no request when it is stopped.
func TestReleaseWithoutALease(t *testing.T) {
	w := newWorld()
	w.candidate("leader", state("l", 1, 1)).taken(t)
	standby := w.candidate("standby", state("l", 1, 1))
	standby.try()
	held := w.version
	w.away = true
	if err := standby.Release(t.Context()); err != nil || w.version != held {
		t.Errorf("%v, and %d writes", err, w.version-held)
	}
}

// TestReleaseDeleted gives up a Lease that is not there any more.
func TestReleaseDeleted(t *testing.T) {
	w := newWorld()
	leader := w.candidate("leader", state("l", 1, 1))
	leader.taken(t)
	w.lease = nil
	if err := leader.Read(t.Context()); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if err := leader.Release(t.Context()); err != nil || leader.Left() > 0 || w.lease != nil {
		t.Errorf("%v, %v left, %v", err, leader.Left(), w.lease)
	}
}

// TestOtherCluster ends the process.
func TestOtherCluster(t *testing.T) {
	w := newWorld()
	w.candidate("first", state("l", 1, 1)).taken(t)
	w.edit(func(l *coordinationv1.Lease) { l.Annotations["kubeferry.dev/cluster-uid"] = "other" })
	next := w.candidate("next", state("l", 1, 1))
	if next.try() || !errors.Is(next.Status().Err, replication.ErrOtherCluster) {
		t.Errorf("%+v", next.Status())
	}
}

// A leader that could not read the uid of its cluster leaves the one that the Lease names.
func TestLeaderWithoutAUID(t *testing.T) {
	w := newWorld()
	first := w.candidate("first", state("l", 1, 1))
	first.leads(t)
	next := replication.NewLease(replication.LeaseOptions{
		Client: &w.leases, Name: "l", Identity: "next", Cluster: "c", Duration: duration,
		Claim: func() replication.Claim { return first.claim }, Now: func() time.Time { return w.now },
	})
	c := &candidate{Lease: next, world: w, name: "next", claim: first.claim, lasts: duration}
	c.taken(t)
	named := func(when string) {
		if got := w.lease.Annotations["kubeferry.dev/cluster-uid"]; got != "u" {
			t.Errorf("%s the Lease names %q", when, got)
		}
	}
	named("once it leads")
	if err := c.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	named("given up")
}

// TestPublished: deliveries wait for the Lease to name what would be delivered, and not for its next renewal.
func TestPublished(t *testing.T) {
	w := newWorld()
	last := w.candidate("last", replication.Claim{})
	last.taken(t)
	last.claim = state("made", last.Status().Term, 1) // an empty state gets its lineage once it leads
	if left := last.Left(); left > 0 {
		t.Fatalf("deliveries may go on for %v before the Lease names the lineage", left)
	}
	last.try()
	leader := w.candidate("leader", last.claim)
	leader.taken(t)
	leader.claim = state("made", leader.Status().Term, 2)
	if left := leader.Left(); left > 0 {
		t.Fatalf("deliveries may go on for %v before the Lease names the term", left)
	}
	at := replication.Endpoint{Address: "there:1", Certificate: "sum"}
	w.away = true
	if err := leader.Publish(t.Context(), at); err == nil || leader.Left() > 0 {
		t.Fatalf("published while the API server is away: %v, %v", err, leader.Left())
	}
	w.away = false
	if err := leader.Publish(t.Context(), at); err != nil || leader.Left() <= 0 {
		t.Fatalf("published: %v, left %v", err, leader.Left())
	}
	standby := w.candidate("standby", leader.claim)
	standby.try()
	if found, ok := standby.Leader(); !ok || found != at {
		t.Errorf("a standby finds %+v", found)
	}
	if !leader.try() {
		t.Error("the election cannot renew the Lease any more")
	}
	next := w.candidate("next", leader.claim)
	next.taken(t)
	if err := leader.Publish(t.Context(), at); err == nil || next.Status().Err != nil {
		t.Errorf("published although another leads: %v; %+v", err, next.Status())
	}
}

// The highest offset stays in the Lease, whoever leads next.
func TestLeaseNamesTheOffset(t *testing.T) {
	w := newWorld()
	first := w.candidate("first", replication.Claim{})
	first.taken(t)
	if n := first.Status().Offset; n != 0 {
		t.Errorf("a new Lease names %d", n)
	}
	first.claim, first.offset = replication.Claim{Lineage: "l", Term: first.Status().Term, Commit: 1}, 5_000_000
	if !first.try() {
		t.Fatal("no renewal")
	}
	for n, name := range []string{"without a state", "with an older one", "with the newest"} {
		next := w.candidate(name, replication.Claim{})
		if n > 0 {
			next.claim = replication.Claim{Lineage: "l", Term: uint64(n)}
		}
		if next.taken(t); next.Status().Offset != 5_000_000 {
			t.Errorf("%s: %+v", name, next.Status())
		}
	}
	w.edit(func(l *coordinationv1.Lease) {
		l.Annotations["kubeferry.dev/offset"] = strconv.FormatUint(math.MaxUint64, 10)
	})
	forged := w.candidate("forged", replication.Claim{})
	if forged.taken(t); forged.Status().Offset > 1e18 {
		t.Errorf("of a forged one: %+v", forged.Status())
	}
}

// A replica with a lower offset takes the Lease, and gives it up before it has renewed it.
func TestReleaseKeepsTheOffset(t *testing.T) {
	w := newWorld()
	leader := w.candidate("leader", state("l", 1, 1))
	leader.offset = 5_000_000
	leader.leads(t)
	older := w.candidate("older", state("l", 1, 0))
	older.offset = 4
	older.taken(t)
	if err := older.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.lease.Annotations["kubeferry.dev/offset"]; got != "5000000" {
		t.Errorf("the Lease names %s", got)
	}
}

// The first taker of a new Lease ends before its first commit. Others may have led since its copy, and nobody can say so: no copy is
// the newest, none is clean.
func TestNobodyIsNewestInANewLeaseWithoutACommit(t *testing.T) {
	w := newWorld()
	held := replication.Claim{Lineage: "l", Term: 7, Commit: 9}
	first := w.candidate("first", held)
	if first.taken(t); first.Status().Behind {
		t.Fatalf("%+v", first.Status())
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := w.candidate("second", held)
	if waited := second.taken(t); waited < 30*time.Second || !second.Status().Behind {
		t.Errorf("it leads after %v: %+v", waited, second.Status())
	}
}
