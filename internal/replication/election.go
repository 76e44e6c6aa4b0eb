package replication

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Election takes the Lease when it may be taken, and renews it. client-go's leader election would do the same, but it counts the Lease as
// valid from when the answer to a renewal came, and links everything that client-go generates from Kubernetes' API: half of the program.
type Election struct {
	lease  *Lease
	retry  time.Duration // from one renewal to the next
	logger *slog.Logger

	led  chan struct{} // closed once this process leads
	once sync.Once
	wake chan struct{}
	// failed has the errors with which the Lease could not be taken or renewed since that last succeeded, or since the Lease was held by
	// another; the election's only.
	failed   map[string]bool
	failedAt time.Time // the last of them
	// failures is how often in a row it could not be taken or renewed.
	failures int
}

// NewElection makes an election, which renews the Lease every retryPeriod; nothing is read before Run.
func NewElection(lease *Lease, retryPeriod time.Duration, logger *slog.Logger) *Election {
	return &Election{
		lease: lease, retry: retryPeriod, logger: logger, led: make(chan struct{}), wake: make(chan struct{}, 1), failed: map[string]bool{},
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
	// retryPause is the shortest pause from one try to the next: a right that is missing must not mean requests without end.
	retryPause = 300 * time.Millisecond
	// quickTries is how many may fail in a row before there is one in a retryPeriod only.
	quickTries = 3
)

// Run takes the Lease once it may, and renews it. It returns nil when ctx ends, [ErrLost] when another process has led, and
// [ErrOtherCluster] when the Lease is another cluster's. A late renewal is still done if the Lease never changed hands.
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
		if e.try(ctx) {
			e.once.Do(func() { close(e.led) })
		}
		pause := retryPause
		if e.lease.Status().Leading || e.failures >= quickTries { // from begin to begin: behind one that was slow the next must come soon
			pause = max(pause, e.retry-time.Since(begun))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return e.lease.Status().Err
}

// try takes or renews the Lease as it was read or written last, and reports whether it is held. If a renewal fails, the Lease may have been
// edited: then it is read, and renewed as it is now.
func (e *Election) try(ctx context.Context) bool {
	leading := e.lease.Status().Leading
	err := e.lease.Hold(ctx)
	if err != nil && leading && ctx.Err() == nil {
		e.note(err)
		if err = e.lease.Read(ctx); err == nil || apierrors.IsNotFound(err) {
			err = e.lease.Hold(ctx)
		}
	}
	e.note(err)
	return err == nil
}

// awaitFree returns true once the Lease may be taken.
func (e *Election) awaitFree(ctx context.Context) bool {
	// Twice as often as a leader renews, so that a renewal is seen soon: the Lease ends a duration after that.
	ticker := time.NewTicker(e.retry / 2)
	defer ticker.Stop()
	failed := false
	for {
		err := e.lease.Read(ctx)
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

// note notes whether the Lease was taken or renewed. Why not is in the log once for each error: a renewal sends two requests, which fail in
// turn. What ends Run is not logged here.
func (e *Election) note(err error) {
	if err == nil {
		if time.Since(e.failedAt) > faultPause {
			clear(e.failed)
		}
		e.failures = 0
		return
	}
	status := e.lease.Status()
	e.failures++
	e.failedAt = time.Now()
	text := withoutAddress(err)
	if e.failed[text] || len(e.failed) >= maxFailures || status.Err != nil || errors.Is(err, context.Canceled) {
		return
	}
	e.failed[text] = true
	logger := e.logger.With("lease", e.lease.Describe(), "err", err)
	if status.Leading {
		logger.Warn("cannot renew the Lease; trying again")
	} else {
		logger.Warn("cannot take the Lease; trying again")
	}
}

// faultPause is how long nothing has failed once a fault is over: some come and go.
const faultPause = 30 * time.Second

// maxFailures bounds how many errors are logged, if each differs.
const maxFailures = 10

// localAddress is this end of a connection, with a port that differs each time.
var localAddress = regexp.MustCompile(`[^ ]+->`)

// withoutAddress returns the text of an error by which it is logged once.
func withoutAddress(err error) string { return localAddress.ReplaceAllString(err.Error(), "") }
