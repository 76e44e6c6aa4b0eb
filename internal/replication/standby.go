package replication

import (
	"bufio"
	"cmp"
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

// applyBytes is how much a standby collects before it writes, while more arrives.
const applyBytes = 4 << 20

// maxPause is the longest pause between two attempts to copy the state.
const maxPause = 10 * time.Second

// Copy is a standby's copy of the leader's state.
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
}

// StandbyStatus is how a standby is doing.
type StandbyStatus struct {
	Connected bool
	// InSync is set while the copy is whole and the leader's connection is alive.
	InSync bool
	// Current is when the copy was last known to equal the leader's state.
	Current time.Time
	// Err is why there is no connection.
	Err error
}

// NewStandby makes a standby; it tries to connect every retry.
func NewStandby(lease *Lease, election *Election, copied Copy, auth Authenticator, retry time.Duration, logger *slog.Logger) *Standby {
	return &Standby{lease: lease, election: election, copy: copied, auth: auth, retry: retry, logger: logger}
}

// Status returns how it is doing.
func (s *Standby) Status() StandbyStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Standby) update(change func(*StandbyStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// Run follows until ctx ends. A connection that is broken means a new copy; until that is whole, the former one counts.
func (s *Standby) Run(ctx context.Context) {
	logged, pause, last := "", s.retry, Endpoint{}
	for ctx.Err() == nil {
		if endpoint, ok := s.lease.Leader(); ok {
			err := s.follow(ctx, endpoint)
			wasInSync := s.Status().InSync
			s.update(func(status *StandbyStatus) { status.Connected, status.InSync, status.Err = false, false, err })
			if ctx.Err() != nil {
				return
			}
			s.election.TryNow()
			if text := err.Error(); wasInSync || text != logged {
				s.logger.Warn("no connection to the leader; trying again", "address", endpoint.Address, "err", err)
				logged = text
			}
			// A copy that fails again and again, on a full disk for example, would keep the leader busy.
			if pause = min(2*pause, maxPause); wasInSync || endpoint != last {
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
	err = s.receive(conn)
	return cmp.Or(context.Cause(ctx), err)
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
	deadline, _ := ctx.Deadline()
	var answer welcome
	err = errors.Join(
		conn.SetDeadline(deadline), writeHello(conn, hello{Protocols: []int{protocol}, Token: token}), readHello(conn, &answer), conn.SetDeadline(time.Time{}))
	switch {
	case err != nil:
	case answer.Refused != "":
		err = fmt.Errorf("the leader refuses the connection: %s", answer.Refused)
	case answer.Protocol != protocol:
		err = fmt.Errorf("the leader speaks protocol %d, and this version %d", answer.Protocol, protocol)
	default:
		if err = s.auth.Check(ctx, leaderAudience(leader.Certificate), answer.Token); err == nil {
			return conn, nil
		}
		err = fmt.Errorf("who the Lease names as the leader is no replica: %w", err)
	}
	_ = conn.Close()
	return nil, err
}

// receive applies what the leader sends.
func (s *Standby) receive(conn net.Conn) error {
	in := bufio.NewReaderSize(conn, 256<<10)
	whole, dirty := false, 0
	var pending []checkpoint.Changes // of the commits that are complete, or of ranges
	var parts []checkpoint.Changes   // of the commit that is not
	var last uint64
	apply := func() error {
		if len(pending) > 0 {
			if err := s.copy.Apply(pending); err != nil {
				return err
			}
		}
		pending, dirty = pending[:0], 0
		if !whole {
			return nil
		}
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails with the connection
		return writeFrame(conn, frameAck, progress(last, time.Now()))
	}
	for {
		if err := conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return err
		}
		kind, content, err := readFrame(in, maxFrame)
		if err != nil {
			return err
		}
		var at time.Time
		if kind == frameCommit || kind == frameWhole || kind == frameAlive {
			if last, at, err = readProgress(content); err != nil {
				return err
			}
		}
		switch kind {
		case frameRange, frameChange:
			if parts, dirty = append(parts, content), dirty+len(content); !whole {
				pending, parts = append(pending, parts...), parts[:0]
			}
		case frameCommit:
			pending, parts = append(pending, parts...), nil
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
			whole = true
			s.logger.Info("the copy of the leader's state is whole", "commit", last)
		case frameAlive:
		default:
			return fmt.Errorf("%w: type %q", errFrame, kind)
		}
		complete := whole && kind != frameChange
		// What has arrived already is written in one go.
		if dirty < applyBytes && (in.Buffered() > 0 || !complete) {
			continue
		}
		if whole && !complete {
			continue // half a commit
		}
		if err := apply(); err != nil {
			return err
		}
		if whole {
			s.update(func(status *StandbyStatus) { status.InSync, status.Current = true, at })
		}
	}
}
