package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/durable"
	"github.com/kubeferry/kubeferry/internal/replication"
	"github.com/kubeferry/kubeferry/source"
)

// handOverTimeout bounds each wait of a planned hand-over for the deliveries under way, and each for a standby that has the last commit.
const handOverTimeout = 2 * time.Second

// replica is this process among the replicas that share a Lease: first a standby, then perhaps the leader.
type replica struct {
	config   *config.Config
	auth     replication.Authenticator
	lease    *replication.Lease
	election *replication.Election
	standby  *replication.Standby
	permit   *replication.Permit
	logger   *slog.Logger
	uid      string // of kube-system; empty if it is not known

	copied *checkpoint.Replica
	// committed is the stamp of the last commit, once this process leads.
	committed atomic.Pointer[checkpoint.Stamp]
	offset    *source.Offset                       // of a leader
	leader    atomic.Pointer[replication.Leader]   // nil until this process leads
	committer atomic.Pointer[checkpoint.Committer] // nil until this process leads
	stuck     atomic.Bool                          // set once it lets the Lease end, since its disk hangs or refuses commits
	// historyLost is set if it is not known to a leader what was delivered beyond what its state has.
	historyLost bool

	fail    context.CancelCauseFunc
	stop    context.CancelFunc // the election and the permit
	running sync.WaitGroup
	release sync.Once
}

// newReplica makes a standby, and waits for the API server.
func newReplica(ctx context.Context, loaded *config.Config, cluster *rest.Config, client *source.Client, fail context.CancelCauseFunc, logger *slog.Logger) (*replica, error) {
	options := loaded.LeaderElection
	api, err := replication.NewAPI(leaseConfig(cluster, options.RenewDeadline))
	if err != nil {
		return nil, err
	}
	r := &replica{config: loaded, fail: fail, logger: logger, stop: func() {}}
	if r.uid, err = identify(ctx, client, logger); err != nil {
		return nil, err
	}
	var refused error
	err = untilAnswered(ctx, logger, func() (err error) {
		r.auth, err = replication.NewAuthenticator(ctx, api)
		if errors.Is(err, replication.ErrNoServiceAccount) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			refused = err
			return nil
		}
		return err
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, err
	}
	// A replica that could not lead must not get ready.
	probe, err := replication.Listen(ctx, loaded.Replication.Listen, r.auth, logger)
	if err != nil {
		return nil, &FailureError{err}
	}
	probe.Close()
	if r.copied, err = checkpoint.OpenReplica(loaded.StateDir, reportTo(r.logger)); err != nil {
		return nil, &FailureError{err}
	}
	r.lease = replication.NewLease(replication.LeaseOptions{
		Client: api.Leases(options.LeaseNamespace), Name: options.LeaseName, Namespace: options.LeaseNamespace,
		Identity: identity(), Cluster: loaded.Cluster, ClusterUID: r.uid, Duration: options.LeaseDuration, StaleWait: options.StaleWait, Claim: r.claim, Offset: r.offsetInUse,
	})
	r.election = replication.NewElection(r.lease, options.RetryPeriod, logger)
	r.standby = replication.NewStandby(r.lease, r.election, r.copied, r.auth, options.RetryPeriod, logger)
	r.permit = replication.NewPermit(r.lease.Left)
	return r, nil
}

// leaseConfig is for the requests that the Lease depends on: one that hangs must not cost it. They go over HTTP/1.1, where a time-out
// closes the connection, and the next request dials anew, perhaps another API server. With HTTP/2 all would share one connection with
// lists and watches, and if its other end is gone hang until pings have failed, for 45 s.
func leaseConfig(cluster *rest.Config, renewDeadline time.Duration) *rest.Config {
	c := rest.CopyConfig(cluster)
	c.Timeout = max(time.Second, renewDeadline/2)
	c.NextProtos = []string{"http/1.1"}
	c.QPS, c.Burst = 50, 100
	return c
}

// identity is random, so that a process that is started again is another one; the Pod's name before it is for people.
func identity() string {
	name, err := os.Hostname()
	if err != nil {
		name = "kubeferry"
	}
	return name + "_" + rand.Text()
}

// claim is which state this process holds; as a leader, the newest that a standby has, or its own while none is in sync.
func (r *replica) claim() replication.Claim {
	if led := r.committed.Load(); led != nil {
		c := replication.Claim{Lineage: led.Lineage, Term: led.Term, Commit: led.Commit}
		if leader := r.leader.Load(); leader != nil {
			if found := leader.Standbys(); found.InSync > 0 {
				c.Commit = found.Acked
			}
		}
		return c
	}
	stamp := r.copied.Info().Replica
	if stamp == nil {
		return replication.Claim{}
	}
	return replication.Claim{Lineage: stamp.Lineage, Term: stamp.Term, Commit: stamp.Commit}
}

// offsetInUse returns what a leader adds to resource versions. That of a standby is its leader's, or older.
func (r *replica) offsetInUse() uint64 {
	if r.committed.Load() == nil {
		return 0
	}
	return r.offset.Current()
}

// lead returns once this process leads. Until then it follows whoever does.
func (r *replica) lead(ctx context.Context) error {
	electing, stop := context.WithCancel(context.Background())
	r.stop = stop
	ended := make(chan error, 1)
	r.running.Go(func() { ended <- r.election.Run(electing) })
	following, stopFollowing := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { r.standby.Run(following) })
	r.logger.Info("standing by", "lease", r.lease.Describe(), "identity", r.lease.Identity())
	var err error
	select {
	case <-r.election.Led():
		r.running.Go(func() {
			r.leaveIfStuck(electing, r.config.LeaderElection.LeaseDuration, checkpoint.HangTimeout, checkpoint.HangTimeout)
		})
	case err = <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	stopFollowing()
	follower.Wait()
	if err != nil {
		return errors.Join(err, r.copied.Close())
	}
	status := r.lease.Status()
	r.logger.Info("leading", "lease", r.lease.Describe(), "term", status.Term)
	r.running.Go(func() {
		if err := <-ended; err != nil {
			r.fail(lostError(err))
		}
	})
	r.running.Go(func() {
		r.permit.Run(electing, func(granted bool) {
			if granted {
				r.logger.Info("the Lease is valid: delivering")
			} else {
				r.logger.Warn("the Lease could not be renewed in time: deliveries pause until it is")
			}
		})
	})
	return nil
}

// leaveIfStuck lets the Lease end once this leader's disk has hung for a while, or has refused commits for as long as the Lease lasts, and a
// standby's copy gets older meanwhile. It also does if the disk hangs while this replica takes over, which would never end. A disk that is
// only slow ends a small write in time.
func (r *replica) leaveIfStuck(ctx context.Context, refuses, hangs, smallWrite time.Duration) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		leader, committer := r.leader.Load(), r.committer.Load() // in this order: there is a committer before there is a leader
		if leader != nil && committer.Failing() > refuses && leader.Standbys().InSync > 0 {
			r.leave(fmt.Errorf("the disk of %s has refused commits for %v, and a standby is in sync: %w", r.config.StateDir, refuses, committer.Err()))
			return
		}
		if leader != nil && (committer.Writing() <= hangs || leader.Standbys().InSync == 0) {
			continue
		}
		written, name := make(chan struct{}), filepath.Join(r.config.StateDir, "disk-check")
		go func() {
			_, _ = durable.WriteFile(name, nil), os.Remove(name) // a disk that is full does not hang
			close(written)
		}()
		select {
		case <-written:
		case <-ctx.Done():
			return
		case <-time.After(smallWrite):
			r.leave(fmt.Errorf("the disk of %s has not ended a small write for %v", r.config.StateDir, smallWrite))
			return
		}
	}
}

func (r *replica) leave(err error) {
	r.logger.Error("this leader is stuck, and lets its Lease end", "err", err)
	r.stuck.Store(true)
	r.stop()
	r.fail(&FailureError{err})
}

// lostError is how the process ends when another one leads.
func lostError(err error) error {
	if errors.Is(err, replication.ErrOtherCluster) {
		return err // a mistake in the configuration
	}
	return &FailureError{err}
}

// begin makes the store of a leader one whose commits are stamped, and sent to the standbys. They get the key of redaction too, unless it is
// configured.
func (r *replica) begin(store *checkpoint.Store, key []byte, offset func(uint64) *source.Offset) (*checkpoint.Store, error) {
	status, info := r.lease.Status(), store.Info()
	if claimed := r.copied.Info().Replica; claimed != nil && (info.Replica == nil || info.Replica.Lineage != claimed.Lineage || info.Replica.Compare(*claimed) != 0) {
		return nil, &FailureError{errors.Join(errors.New("the state with which this replica took the Lease cannot be used; the next start uses what is left of it"), store.Close())}
	}
	if claim := r.claim(); status.Behind || info.Replica != nil && claim != status.Before {
		store.Doubt() // others may have led since, even if a deleted Lease does not show it
	}
	if status.Behind {
		r.logger.Error("this replica leads with an older state than the last leader had: no replica with a newer state came in time",
			"state", fmt.Sprintf("%+v", r.claim()), "last", fmt.Sprintf("%+v", status.Before))
	}
	stamp := checkpoint.Stamp{Lineage: rand.Text()}
	switch {
	case info.Replica != nil:
		stamp = *info.Replica
		// An older copy, or one that lacks the commit that raised the offset, and what was sent since.
		r.historyLost = status.Behind || status.Offset > info.Offset
		// And a deleted Lease does not show what others sent.
		r.historyLost = r.historyLost || status.Before.Lineage == ""
	case status.Before.Lineage != "":
		r.historyLost = true
	}
	if r.historyLost {
		store.Doubt()
	}
	r.offset = offset(max(info.Offset, status.Offset))
	stamp = stamp.Begin(status.Term)
	if c := r.config.Redaction; c.Key == "" && c.KeyFile == "" {
		stamp.RedactionKey = key
	}
	store.Lead(stamp, func(stamp *checkpoint.Stamp, changes []checkpoint.Changes) {
		r.committed.Store(stamp)
		if leader := r.leader.Load(); leader != nil {
			leader.Committed(stamp, changes)
		}
	})
	return store, nil
}

// serve lets standbys connect. The first commit must be written.
func (r *replica) serve(ctx context.Context, store *checkpoint.Store) error {
	leader, err := replication.Listen(ctx, r.config.Replication.Listen, r.auth, r.logger)
	if err != nil {
		return &FailureError{err}
	}
	r.leader.Store(leader) // it gets each commit from here on
	leader.Serve(store, r.committed.Load().Commit)
	advertised := r.config.Replication.Advertise
	if advertised == "" {
		advertised = leader.Address()
	}
	if err := r.lease.Publish(ctx, replication.Endpoint{Address: advertised, Certificate: leader.Certificate()}); err != nil {
		r.logger.Info("cannot renew the Lease at once; deliveries wait for its next renewal", "err", err)
	}
	r.logger.Info("serving standbys", "address", leader.Address(), "advertised", advertised)
	return nil
}

// lost reports whether another process leads.
func (r *replica) lost() bool { return r.lease.Status().Err != nil }

// stopDelivering lets no more deliveries begin, and waits for those under way, if another replica goes on with what waits; else it
// returns false at once.
func (r *replica) stopDelivering() bool {
	if leader := r.leader.Load(); !r.lost() && (leader == nil || leader.Standbys().InSync == 0) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverTimeout)
	defer cancel()
	r.permit.Close(ctx)
	return true
}

// awaitCopy waits until a standby has the last commit, if one is in sync. It is for what the next leader must not miss: most commits are
// repeated without harm.
func (r *replica) awaitCopy(ctx context.Context) (copied bool) {
	leader := r.leader.Load()
	if leader == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	return leader.AwaitAck(ctx)
}

// secure waits for a standby to have the last commit, and for the Lease to name the offset, or for a while: without that nothing is delivered.
func (r *replica) secure(ctx context.Context) {
	r.awaitCopy(ctx)
	publishing, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	if err := r.lease.PublishOffset(publishing); err != nil && ctx.Err() == nil {
		r.logger.Info("cannot renew the Lease at once; deliveries wait until it names the offset", "err", err)
	}
}

// handOver gives the Lease up after the last commit, once a standby has it or after a while, and then closes the connections.
func (r *replica) handOver() {
	r.release.Do(func() {
		leader := r.leader.Load()
		if leader != nil && !r.lost() {
			if r.awaitCopy(context.Background()) {
				r.logger.Info("a standby has the last commit")
			} else {
				r.logger.Warn("no standby has the last commit; what was not delivered is in this replica's state directory only")
			}
		}
		r.stop()
		r.running.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), CloseTimeout)
		defer cancel()
		if err := r.lease.Release(ctx); err != nil && !errors.Is(err, replication.ErrLost) {
			r.logger.Warn("cannot give the Lease up; it ends by itself", "err", err)
		}
		if leader != nil {
			leader.Close()
		}
	})
}
