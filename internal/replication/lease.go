package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LeaseClient reads and writes Leases of one namespace.
type LeaseClient interface {
	Get(ctx context.Context, name string) (*coordinationv1.Lease, error)
	Create(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// LeaseOptions are what [NewLease] needs to make a [Lease].
type LeaseOptions struct {
	Client          LeaseClient
	Name, Namespace string
	// Identity names this process in the Lease. It must differ in each process.
	Identity string
	// Cluster and ClusterUID are the configured name, and the uid of kube-system; the uid is empty if it is not known.
	Cluster, ClusterUID string
	// Duration is how long the Lease is valid after a renewal, in whole seconds.
	Duration time.Duration
	// StaleWait is how long a replica with an older state than the last leader's leaves a free Lease to others.
	StaleWait time.Duration
	// Claim returns what this replica holds.
	Claim func() Claim
	// Offset returns what this replica adds to resource versions to make sequences; nil: 0.
	Offset func() uint64
	Now    func() time.Time // nil: time.Now
}

var (
	// ErrLost means that another replica leads, or has led, since this one did.
	ErrLost = errors.New("another replica leads")
	// ErrOtherCluster means that the Lease is that of a kubeferry of another cluster.
	ErrOtherCluster = errors.New("the Lease belongs to another cluster")
	errNotYet       = errors.New("the Lease may not be taken yet")
	errNotRead      = fmt.Errorf("%w: it was not read", errNotYet)
)

// Lease is the lock that an [Election] takes and renews. It takes a Lease only for a state that is new enough: that is
// checked in the update that takes it, which fails if the Lease has changed since.
type Lease struct {
	options LeaseOptions

	writing chan struct{} // holds a value during an update: one at a time

	mu sync.Mutex // guards what follows
	// seen is the Lease as last read or written, nil if it does not exist. since is when that one was first seen, plus the time without
	// answers since.
	seen  *coordinationv1.Lease
	since time.Time
	// lastRead is when it was last read.
	lastRead time.Time
	read     bool // some answer came
	// valid is for how long a holder counts on the Lease, as the last one seen wrote there: its duration may be another than ours.
	valid time.Duration
	// status lacks Holder and Waiting. Before, Behind and Offset are of when this process took the Lease, or last tried to.
	status  LeaseStatus
	renewed time.Time // when the last renewal was sent
	// published is the state that the last renewal named.
	published       Claim
	publishedOffset uint64
	endpoint        Endpoint
	onLost          chan struct{} // closed once status.Err is set
}

// NewLease makes the lock.
func NewLease(options LeaseOptions) *Lease {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Offset == nil {
		options.Offset = func() uint64 { return 0 }
	}
	return &Lease{options: options, writing: make(chan struct{}, 1), onLost: make(chan struct{})}
}

// Identity returns the name of this process in the Lease.
func (l *Lease) Identity() string { return l.options.Identity }

// Describe names the Lease in logs and errors.
func (l *Lease) Describe() string { return l.options.Namespace + "/" + l.options.Name }

// Read reads the Lease. If there is none, the error says so, and Hold creates it.
func (l *Lease) Read(ctx context.Context) error {
	lease, err := l.options.Client.Get(ctx, l.options.Name)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
		l.observe(nil)
		return err
	case err != nil:
		return err
	}
	l.observe(lease)
	return l.status.Err
}

// observe notes a Lease as it is; l.mu is held.
func (l *Lease) observe(lease *coordinationv1.Lease) {
	now := l.options.Now()
	before := l.seen
	changed := !l.read || (lease == nil) != (before == nil) || lease != nil && (lease.UID != before.UID || lease.ResourceVersion != before.ResourceVersion)
	// An API server that was away is no reason to take the Lease: its leader could not renew it. That time does not count. Waits do not
	// begin anew, or they would never end if that happens often.
	if away := elapsed(l.lastRead, now); away > l.options.Duration/2 {
		l.since = l.since.Add(away)
	}
	if changed || l.since.After(now) {
		l.since = now
	}
	l.lastRead = now
	if l.read && holder(lease) != "" && holder(lease) != holder(before) {
		l.status.Changes++
	}
	l.seen, l.read = lease, true
	r, lost := leaseAnnotations{}, l.status.Err
	if lease != nil {
		r = readAnnotations(lease, now)
		if d := lease.Spec.LeaseDurationSeconds; holder(lease) != "" && d != nil {
			l.valid = min(time.Duration(*d)*time.Second, maxDuration)
		}
	}
	switch {
	case lost != nil:
	case l.status.Leading && r.term == 0 && elapsed(l.renewed, now) > l.options.Duration:
		lost = fmt.Errorf("%w: %s was made anew, and another may have held the one before", ErrLost, l.Describe())
	case lease == nil:
	case r.cluster != "" && r.cluster != l.options.Cluster:
		lost = fmt.Errorf("%w: %s is that of cluster %q, and this is %q: give each its own leaseName", ErrOtherCluster, l.Describe(), r.cluster, l.options.Cluster)
	case r.clusterUID != "" && l.options.ClusterUID != "" && r.clusterUID != l.options.ClusterUID:
		lost = fmt.Errorf("%w: the uid of kube-system in %s is %s, and here %s", ErrOtherCluster, l.Describe(), r.clusterUID, l.options.ClusterUID)
	case l.status.Leading && (holder(lease) != "" && holder(lease) != l.options.Identity || r.term > l.status.Term):
		lost = fmt.Errorf("%w: %s is held by %q in term %d", ErrLost, l.Describe(), holder(lease), r.term)
	}
	if lost != nil && l.status.Err == nil {
		l.status.Err = lost
		close(l.onLost)
	}
}

// maxDuration is the longest that a configuration allows. A longer one in a Lease is not a leader's, and would hold up all for as long,
// also once it is corrected.
const maxDuration = 10 * time.Minute

func holder(lease *coordinationv1.Lease) string {
	if lease == nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// takeable returns nil if this replica may take the Lease that was last seen, else for how long it may not; l.mu is held.
//
// The Lease is free when its leader gave it up, or has not renewed it for as long as it is valid. A deleted Lease, or one without
// annotations, counts as held: a leader that has not read it since may still deliver. A Lease that is free is left to others for as long
// as [Claim.wait] says. Each change of the Lease begins both times anew.
func (l *Lease) takeable() error {
	now, valid, named := l.options.Now(), max(l.options.Duration, l.valid), Claim{}
	if l.seen != nil {
		r := readAnnotations(l.seen, now)
		named = r.claim
		if holder(l.seen) == "" && r.term != 0 && r.released == r.term {
			valid = 0
		}
	}
	// Not by the wall clock, as a leader: one that is set ahead here must not end another's Lease, and a machine that slept waits anew.
	if left := valid + l.options.Claim().wait(named, l.options.StaleWait) - now.Sub(l.since); left > 0 {
		return fmt.Errorf("%w: not for %v, unless it is given up", errNotYet, left.Round(time.Millisecond))
	}
	return nil
}

// elapsed is how long ago a moment was, by the larger of monotonic and wall time: a machine that slept has not counted the
// one, and one whose clock was set back has not counted the other.
func elapsed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// Hold takes or renews the Lease as it was read or written last, if this replica may. It returns a conflict error if the
// Lease has changed since. If the answer to the update that takes it is lost, this replica does not lead, and waits for the end of the Lease
// as others do.
func (l *Lease) Hold(ctx context.Context) error {
	if err := l.beginUpdate(ctx); err != nil {
		return err
	}
	defer l.endUpdate()
	return l.hold(ctx)
}

func (l *Lease) hold(ctx context.Context) error {
	sent, claim := l.options.Now(), l.options.Claim()
	l.mu.Lock()
	lease, write := l.seen.DeepCopy(), l.options.Client.Update
	if lease == nil {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.options.Name, Namespace: l.options.Namespace}}
		write = l.options.Client.Create
	}
	before := readAnnotations(lease, sent)
	leading, term, err := l.status.Leading, l.status.Term, l.status.Err
	switch {
	case err != nil:
	case !l.read:
		err = errNotRead
	case !leading:
		err = l.takeable()
	}
	if err != nil {
		l.mu.Unlock()
		return err
	}
	if !leading {
		// Others may have led that neither the Lease nor the claim names: it was deleted, or etcd was restored. The clock
		// puts the term above theirs too. A term that came twice would make two histories of one lineage look the same.
		term = max(before.term, before.claim.Term, claim.Term, clockTerm(sent)) + 1
		l.status.Before, l.status.Behind, l.status.Offset = before.claim, claim.behind(before.claim), before.offset
	}
	r := leaseAnnotations{
		cluster: l.options.Cluster, clusterUID: cmp.Or(l.options.ClusterUID, before.clusterUID), claim: l.written(claim, term), term: term,
		offset: max(before.offset, l.status.Offset, l.options.Offset()), endpoint: l.endpoint,
	}
	l.mu.Unlock()
	l.fill(&lease.Spec, sent)
	r.write(lease)
	written, err := write(ctx, lease) // without the mutex: a check of the Lease must not wait for the API server
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !leading {
		l.status.Leading, l.status.Term = true, term
		l.status.Changes++
	}
	l.seen, l.since, l.renewed, l.published, l.publishedOffset = written, sent, sent, r.claim, r.offset
	return nil
}

// fill writes a renewal to the spec of a Lease. If this replica does not hold the Lease yet, it also writes that this replica takes it.
func (l *Lease) fill(spec *coordinationv1.LeaseSpec, now time.Time) {
	moment, seconds := metav1.NewMicroTime(now), int32(l.options.Duration/time.Second)
	if spec.HolderIdentity == nil || *spec.HolderIdentity != l.options.Identity {
		transitions := int32(0) // as in other Leases, the first holder is none
		if spec.LeaseTransitions != nil {
			transitions = *spec.LeaseTransitions + 1
		}
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = &l.options.Identity, &moment, &transitions
	}
	spec.LeaseDurationSeconds, spec.RenewTime = &seconds, &moment
}

// written returns the state for a leader's Lease; l.mu is held. Before the first commit of its term that is what the last leader named:
// if this one ends first, nothing was delivered, and the next one must still wait for a newer copy, send gap records,
// or doubt its own copy. If the Lease was deleted, the commits of leaders since are not known: then it is a commit that no copy
// has.
func (l *Lease) written(claim Claim, term uint64) Claim {
	switch {
	case claim.Term == term:
	case l.status.Before.Lineage != "":
		claim = l.status.Before
	default:
		if claim.Lineage != "" {
			claim.Commit = maxAhead
		}
	}
	return claim
}

// Leader returns where the present leader serves standbys, if it is another process.
func (l *Lease) Leader() (e Endpoint, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := holder(l.seen); h == "" || h == l.options.Identity {
		return Endpoint{}, false
	}
	e = readAnnotations(l.seen, l.options.Now()).endpoint
	return e, e.Address != ""
}

// Lost is closed once this process may not lead any more.
func (l *Lease) Lost() <-chan struct{} { return l.onLost }

// LeaseStatus is what a replica has read of the Lease, and whether it leads.
type LeaseStatus struct {
	Leading bool
	Term    uint64
	// Before is the last leader's state that the Lease named when this process took it. Behind is set if that was newer than this
	// one's.
	Before Claim
	Behind bool
	// Offset is what leaders had added to resource versions by then, at most.
	Offset uint64
	// Holder is the identity of who holds it.
	Holder string
	// Changes counts how often the holder changed as this process saw it.
	Changes int
	// Err is [ErrLost] or [ErrOtherCluster] once this process may not lead any more.
	Err error
	// Waiting is why a Lease may not be taken yet.
	Waiting error
}

// Status returns what is known of the Lease.
func (l *Lease) Status() LeaseStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Holder = holder(l.seen)
	switch {
	case s.Leading:
	case l.read:
		s.Waiting = l.takeable()
	default:
		s.Waiting = errNotRead
	}
	return s
}

// Left returns for how long deliveries may go on: until a second before the Lease may be another's. That is counted from before
// the last renewal was sent, since the time of the answer says nothing about when the API server wrote it. It is 0 until
// the Lease names a commit of this term, and the offset of what would be delivered.
func (l *Lease) Left() time.Duration {
	claim := l.options.Claim()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.status.Leading || l.status.Err != nil || l.renewed.IsZero() ||
		l.published.Term != l.status.Term || claim.Lineage != l.published.Lineage || l.options.Offset() > l.publishedOffset {
		return 0
	}
	return l.options.Duration - margin - elapsed(l.renewed, l.options.Now())
}
