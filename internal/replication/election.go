package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// Timing is of client-go's leader election.
type Timing struct {
	// LeaseDuration is how long a Lease is valid after a renewal; RenewDeadline is how long renewals are tried before the election
	// begins anew, and RetryPeriod the pause between them.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Election takes the Lease when it may be taken, and renews it.
type Election struct {
	lease  *Lease
	timing Timing
	logger *slog.Logger

	led  chan struct{} // closed once this process leads
	once sync.Once
	wake chan struct{}
	// failed has the errors with which the Lease could not be taken or renewed since that last succeeded, or since the Lease was held by
	// another; the election's only.
	failed   map[string]bool
	failedAt time.Time // the last of them
	// failures is how often in a row it could not be taken.
	failures int
}

// NewElection makes an election; nothing is read before Run.
func NewElection(lease *Lease, timing Timing, logger *slog.Logger) *Election {
	return &Election{
		lease: lease, timing: timing, logger: logger, led: make(chan struct{}), wake: make(chan struct{}, 1), failed: map[string]bool{},
	}
}

// Led is closed once this process leads.
func (e *Election) Led() <-chan struct{} { return e.led }

// TryNow makes Run read the Lease at once, as when the leader has closed its connection.
func (e *Election) TryNow() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

const (
	// retryPause is the pause behind an election that ended without a leader: a right that is missing must not mean requests without end.
	retryPause = 300 * time.Millisecond
	// quickTries is how many may fail in a row before there is one in a retryPeriod only.
	quickTries = 3
)

// Run takes the Lease once it may, and renews it until ctx ends (nil), another process has led ([ErrLost]), or the Lease is
// another cluster's ([ErrOtherCluster]). A late renewal is still done if the Lease never changed hands.
func (e *Election) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-e.lease.Lost():
			cancel()
		case <-stop:
		}
	}()
	for ctx.Err() == nil {
		if !e.lease.Status().Leading && !e.awaitFree(ctx) {
			break
		}
		begun := time.Now()
		if err := e.elect(ctx); err != nil {
			return err
		}
		if e.lease.Status().Leading {
			continue
		}
		pause := retryPause
		if e.failures >= quickTries { // from begin to begin: behind one that was slow the Lease must be read soon
			pause = max(pause, e.timing.RetryPeriod-time.Since(begun))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return e.lease.Status().Err
}

// awaitFree returns true once the Lease may be taken.
func (e *Election) awaitFree(ctx context.Context) bool {
	// Twice as often as a leader renews, so that a renewal is seen soon: the Lease ends a duration after that.
	ticker := time.NewTicker(e.timing.RetryPeriod / 2)
	defer ticker.Stop()
	failed := false
	limit := newReadLimit(e.timing.LeaseDuration)
	for {
		err := limit.read(ctx, e.lease)
		status := e.lease.Status()
		missing := apierrors.IsNotFound(err)
		if status.Err == nil && (err == nil || missing) && (status.Leading || status.Waiting == nil) {
			return true
		}
		if err == nil { // another holds it: what comes next is another fault
			clear(e.failed)
			e.failures = 0
		}
		if err != nil && status.Err == nil && !failed && ctx.Err() == nil {
			e.logger.Warn("cannot read the Lease; trying again", "lease", e.lease.Describe(), "err", err)
		}
		failed = err != nil
		select {
		case <-ticker.C:
		case <-e.wake:
		case <-ctx.Done():
			return false
		}
	}
}

// candidacy is the Lease of an election that found it free. It ends the election when the Lease is not free any more, as when another
// replica was faster, and after a failed call; then awaitFree reads the Lease again. client-go would pause for up to 2.2 retryPeriods:
// with a call that got no answer, the Lease would be unread for too long, and the wait for it begin anew. A time limit would cut off
// each slow update.
type candidacy struct {
	*Lease
	election *Election
	end      context.CancelFunc
}

// Get implements [resourcelock.Interface].
func (c *candidacy) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	found, raw, err := c.Lease.Get(ctx)
	if c.Status().Waiting != nil {
		c.end()
	}
	if err == nil || apierrors.IsNotFound(err) {
		return found, raw, err
	}
	return found, raw, c.checked(err)
}

// Create implements [resourcelock.Interface].
func (c *candidacy) Create(ctx context.Context, ler resourcelock.LeaderElectionRecord) error {
	return c.checked(c.Lease.Create(ctx, ler))
}

// Update implements [resourcelock.Interface].
func (c *candidacy) Update(ctx context.Context, ler resourcelock.LeaderElectionRecord) error {
	return c.checked(c.Lease.Update(ctx, ler))
}

// checked ends the election behind an error, unless this process leads: then renewals are tried until their deadline.
func (c *candidacy) checked(err error) error {
	e, status := c.election, c.Status()
	if err == nil {
		if time.Since(e.failedAt) > faultPause {
			clear(e.failed)
		}
		e.failures = 0
		return nil
	}
	if !status.Leading {
		c.end()
		e.failures++
	}
	e.failedAt = time.Now()
	// Each is in the log once: a renewal sends two requests, which fail in turn. What ends Run is not logged here.
	if text := kind(err); !e.failed[text] && len(e.failed) < maxFailures && status.Err == nil && !errors.Is(err, context.Canceled) {
		e.failed[text] = true
		if status.Leading {
			e.logger.Warn("cannot renew the Lease; trying again", "lease", c.Describe(), "err", err)
		} else {
			e.logger.Warn("cannot take the Lease; trying again", "lease", c.Describe(), "err", err)
		}
	}
	return err
}

// faultPause is how long nothing has failed once a fault is over: some come and go.
const faultPause = 30 * time.Second

// maxFailures bounds how many errors are logged, if each differs.
const maxFailures = 10

// localAddress is this end of a connection, with a port that differs each time.
var localAddress = regexp.MustCompile(`[^ ]+->`)

// kind is the text of an error by which it is logged once.
func kind(err error) string { return localAddress.ReplaceAllString(err.Error(), "") }

// elect runs client-go's election until it gives up.
func (e *Election) elect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          &candidacy{e.lease, e, cancel},
		LeaseDuration: e.timing.LeaseDuration, RenewDeadline: e.timing.RenewDeadline, RetryPeriod: e.timing.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { e.once.Do(func() { close(e.led) }) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(klog.NewContext(ctx, logr.Discard())) // errors are in the log once each; client-go would add lines of its own
	return nil
}
