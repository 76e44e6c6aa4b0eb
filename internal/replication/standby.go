package replication

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
)

// applyBytes is how much a standby reads ahead while it writes.
const applyBytes = 4 << 20

// maxPause is the longest pause between two attempts to copy the state.
const maxPause = 10 * time.Second

// errLeaderRefuses comes with a text, or a number, of a peer that has not shown that it is a replica.
var errLeaderRefuses = errors.New("the leader refuses the connection")

// refusedPause is the shortest pause between two lines of the log with such a text.
const refusedPause = time.Minute

// Copy is a standby's copy of the leader's state; [checkpoint.Replica] describes the methods.
type Copy interface {
	BeginCopy() error
	Apply(changes []checkpoint.Changes) error
	EndCopy() error
}

// Standby follows the leader that the Lease names.
type Standby struct {
	lease    *Lease
	election *Election
	copy     Copy
	auth     Authenticator
	retry    time.Duration
	logger   *slog.Logger

	mu     sync.Mutex // guards what follows
	status StandbyStatus
	since  time.Time // when it came to be in sync
}

// StandbyStatus is how a standby is doing.
type StandbyStatus struct {
	Connected bool
	// InSync is set while the copy is whole and what is in it arrived a moment ago.
	InSync bool
	// Current is when the newest of what is in the copy arrived. Clocks of two machines differ, so it is not when the leader sent that: what
	// waits in the connection does not count.
	Current time.Time
	// Err is why there is no connection.
	Err error
}

// NewStandby makes a standby. It tries to connect again after retry, and later if it fails again and again.
func NewStandby(lease *Lease, election *Election, copied Copy, auth Authenticator, retry time.Duration, logger *slog.Logger) *Standby {
	return &Standby{lease: lease, election: election, copy: copied, auth: auth, retry: retry, logger: logger}
}

// Status returns how it is doing.
func (s *Standby) Status() StandbyStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.InSync = status.InSync && time.Since(status.Current) < inSyncWithin
	return status
}

func (s *Standby) update(change func(*StandbyStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// Run follows until ctx ends. A connection that is broken means a new copy; until that is whole, the former one counts.
func (s *Standby) Run(ctx context.Context) {
	logged, pause, last := "", s.retry, Endpoint{}
	var refusalLogged time.Time // when a line with errLeaderRefuses was logged last
	for ctx.Err() == nil {
		if endpoint, ok := s.lease.Leader(); ok {
			err := s.follow(ctx, endpoint)
			var wasInSync bool
			var since time.Time
			s.update(func(status *StandbyStatus) {
				since = s.since
				wasInSync, status.Connected, status.InSync, status.Err = status.InSync, false, false, err
			})
			if ctx.Err() != nil {
				return
			}
			s.election.TryNow()
			isRefused := errors.Is(err, errLeaderRefuses)
			if text := withoutAddress(err); wasInSync || text != logged && !(isRefused && time.Since(refusalLogged) < refusedPause) {
				s.logger.Warn("no connection to the leader; trying again", "address", endpoint.Address, "err", err)
				if logged = text; isRefused {
					refusalLogged = time.Now()
				}
			}
			// A copy that fails again and again, on a full disk for example, would keep the leader busy, also if each was whole for a moment.
			if pause = min(2*pause, maxPause); wasInSync && time.Since(since) > 6*maxPause || endpoint != last {
				pause = s.retry
			}
			last = endpoint
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// follow copies the leader's state, and then each commit, until the connection ends.
func (s *Standby) follow(ctx context.Context, leader Endpoint) error {
	conn, err := s.connect(ctx, leader)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	go s.leaveFormer(ctx, leader, leave)
	s.update(func(status *StandbyStatus) { status.Connected, status.Err = true, nil })
	s.logger.Info("copying the leader's state", "address", leader.Address)
	if err := s.copy.BeginCopy(); err != nil {
		return err
	}
	arrived := newInbox()
	var reading sync.WaitGroup
	reading.Go(func() { arrived.fill(conn) })
	err = s.receive(conn, arrived, leave)
	leave(err)
	arrived.close()
	reading.Wait()
	return context.Cause(ctx)
}

// leaveFormer ends the connection to a leader once the Lease names another: a leader that is cut off from the API server goes on
// sending what it has.
func (s *Standby) leaveFormer(ctx context.Context, leader Endpoint, leave context.CancelCauseFunc) {
	for {
		select {
		case <-time.After(s.retry):
		case <-ctx.Done():
			return
		}
		if now, ok := s.lease.Leader(); ok && now != leader {
			leave(fmt.Errorf("the Lease names another leader: %s", now.Address))
		}
	}
}

func (s *Standby) connect(ctx context.Context, leader Endpoint) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*helloTimeout)
	defer cancel()
	token, err := s.auth.Token(ctx, audience(leader.Certificate))
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{Config: clientTLS(leader.Certificate)}
	conn, err := dialer.DialContext(ctx, "tcp", leader.Address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { cut(conn) }) // a standby that takes the Lease must not wait for the former leader's answer
	defer stop()
	deadline, _ := ctx.Deadline()
	var answer helloAnswer
	err = errors.Join(
		conn.SetDeadline(deadline), writeHello(conn, hello{Protocols: []int{protocol}, Token: token}), readHello(conn, &answer), conn.SetDeadline(time.Time{}))
	switch {
	case err != nil:
	case answer.Refused != "":
		err = fmt.Errorf("%w: %.100s", errLeaderRefuses, answer.Refused)
	case answer.Protocol != protocol:
		err = fmt.Errorf("%w: it speaks protocol %d, and this version %d", errLeaderRefuses, answer.Protocol, protocol)
	default:
		if err = s.auth.Check(ctx, leaderAudience(leader.Certificate), answer.Token); err == nil {
			return conn, nil
		}
		err = fmt.Errorf("who the Lease names as the leader is no replica: %w", err)
	}
	_ = conn.Close()
	return nil, err
}

// receive applies what the leader sends: all that has arrived at once, so that a disk on which each transaction takes long keeps up too.
func (s *Standby) receive(conn net.Conn, arrived *inbox, leave context.CancelCauseFunc) error {
	whole := false
	var pending []checkpoint.Changes // of the commits that are complete, or of ranges
	var parts []checkpoint.Changes   // of the commit that is not
	var last uint64
	var current time.Time
	apply := func() error {
		if len(pending) > 0 {
			if err := s.copy.Apply(pending); err != nil {
				return err
			}
		}
		pending = nil
		if !whole {
			return nil
		}
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails with the connection
		if err := writeFrame(conn, frameAck, progress(last)); err != nil {
			leave(err) // what has arrived is applied all the same
		}
		s.update(func(status *StandbyStatus) {
			if !status.InSync {
				s.since = time.Now()
			}
			status.InSync, status.Current = true, current
		})
		return nil
	}
	for {
		frames, err := arrived.take()
		if err != nil {
			return err
		}
		for _, f := range frames {
			switch f.kind {
			case frameRange, frameChange:
				if parts = append(parts, f.content); !whole {
					pending, parts = append(pending, parts...), nil
				}
			case frameCommit:
				pending, parts = append(pending, parts...), nil
				last, current = f.commit, f.arrived
			case frameAlive:
				last, current = f.commit, f.arrived
			case frameWhole:
				if whole {
					return errFrame
				}
				if err := apply(); err != nil {
					return err
				}
				if err := s.copy.EndCopy(); err != nil {
					return err
				}
				whole, last, current = true, f.commit, f.arrived
				s.logger.Info("the copy of the leader's state is complete", "commit", last)
			default:
				return fmt.Errorf("%w: type %q", errFrame, f.kind)
			}
		}
		if err := apply(); err != nil {
			return err
		}
	}
}
