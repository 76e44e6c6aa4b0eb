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
	"slices"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
)

// maxStandbys bounds those that are served.
const maxStandbys = 8

// StateReader reads the leader's state.
type StateReader interface {
	// ReadRange is as that of [checkpoint.Store].
	ReadRange(from *checkpoint.Range, maxBytes int) (changes checkpoint.Changes, next *checkpoint.Range, commit uint64, err error)
}

// Leader sends its commits to the standbys that connect.
type Leader struct {
	listener    net.Listener
	certificate string
	auth        Authenticator
	logger      *slog.Logger
	stop        context.CancelFunc
	running     sync.WaitGroup
	reviews     chan struct{}

	mu              sync.Mutex         // guards what follows
	source          StateReader        // nil before Serve
	unauthenticated []*unauthenticated // the oldest first
	refused         map[string]bool
	standbys        map[*standby]struct{}
	last            uint64        // the number of the last commit
	changed         chan struct{} // closed when one acknowledged something, or is gone
	closed          bool
}

// Listen begins to listen; connections wait until [Leader.Serve].
func Listen(ctx context.Context, address string, auth Authenticator, logger *slog.Logger) (*Leader, error) {
	certificate, sum, err := newCertificate()
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for standbys (replication.listen): %w", err)
	}
	listener = tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}})
	return &Leader{
		listener: listener, certificate: sum, auth: auth, logger: logger, stop: func() {},
		reviews: make(chan struct{}, maxReviews), refused: map[string]bool{}, standbys: map[*standby]struct{}{}, changed: make(chan struct{}),
	}, nil
}

// Certificate is the SHA-256 of the certificate, in hexadecimal.
func (l *Leader) Certificate() string { return l.certificate }

// Address is where it listens.
func (l *Leader) Address() string { return l.listener.Addr().String() }

// Serve sends the state to those that connect, until Close. last is the number of a commit that is on disk: [Leader.Committed] must be
// called with each one after it.
func (l *Leader) Serve(source StateReader, last uint64) {
	ctx, stop := context.WithCancel(context.Background())
	l.mu.Lock()
	l.last = max(l.last, last)
	l.mu.Unlock()
	l.source, l.stop = source, stop
	l.running.Go(func() {
		for {
			conn, err := l.listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // too many open files, for example
				time.Sleep(100 * time.Millisecond)
				continue
			}
			from := l.addUnauthenticated(conn)
			if from == nil {
				_ = conn.Close()
				continue
			}
			l.running.Go(func() {
				defer conn.Close()
				l.serve(ctx, from)
			})
		}
	})
}

// Close closes the connections. A standby then tries at once to take the Lease.
func (l *Leader) Close() {
	l.stop()
	_ = l.listener.Close()
	l.mu.Lock()
	l.closed = true
	for _, from := range l.unauthenticated {
		cut(from.conn)
	}
	for s := range l.standbys {
		cut(s.conn)
	}
	l.mu.Unlock()
	l.running.Wait()
}

// serve serves one connection.
func (l *Leader) serve(ctx context.Context, from *unauthenticated) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn := from.conn
	err := l.authenticate(ctx, from)
	if err != nil {
		_ = conn.Close()
	}
	l.removeUnauthenticated(from)
	if err != nil {
		l.refuse(conn, err)
		return
	}
	s := &standby{conn: conn, name: conn.RemoteAddr().String(), wake: make(chan struct{}, 1)}
	if !l.add(s) {
		return
	}
	l.logger.Info("a standby is connected", "address", s.name)
	acks := make(chan error, 1)
	l.running.Go(func() {
		acks <- l.readAcks(s)
		cancel()
	})
	err = s.send(ctx, l.source)
	_ = conn.Close()
	if ended := <-acks; err == nil || errors.Is(err, context.Canceled) {
		err = ended
	}
	if l.remove(s) {
		s.mu.Lock()
		defer s.mu.Unlock()
		l.logger.Warn("a standby is gone", "address", s.name, "err", cmp.Or(s.dropped, err))
	}
}

func (l *Leader) add(s *standby) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.standbys) >= maxStandbys {
		return false
	}
	s.base = l.last
	l.standbys[s] = struct{}{}
	return true
}

func (l *Leader) remove(s *standby) (running bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.standbys, s)
	l.wakeAll()
	return !l.closed
}

func (l *Leader) wakeAll() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Committed queues a commit for each standby; it never waits for one. A commit that failed reaches no standby: the next one has all that
// it had.
func (l *Leader) Committed(stamp *checkpoint.Stamp, changes []checkpoint.Changes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &commit{number: stamp.Commit, at: time.Now(), changes: changes}
	l.last = c.number
	for _, part := range changes {
		c.bytes += len(part)
	}
	// One that is larger than the bound, as when a million known objects become due at once, drops no standby that writes it in time.
	c.bytes = min(c.bytes, maxQueue/2)
	for s := range l.standbys {
		s.enqueue(c)
	}
}

// readAcks reads what a standby acknowledges, until the connection ends.
func (l *Leader) readAcks(s *standby) error {
	in := bufio.NewReader(s.conn)
	for joined := false; ; {
		if joined { // its node may be gone without a farewell
			if err := s.conn.SetReadDeadline(time.Now().Add(ackTimeout)); err != nil {
				return err
			}
		}
		kind, content, err := readFrame(in, maxHello)
		if err != nil {
			return err
		}
		number, err := readProgress(content)
		if err != nil || kind != frameAck {
			return errFrame
		}
		s.mu.Lock()
		s.acked, s.heard = max(s.acked, number), time.Now()
		for len(s.unacked) > 0 && s.unacked[0].number <= number {
			s.unacked = s.unacked[1:]
		}
		if !joined && s.wholeAt != 0 && s.acked >= s.wholeAt {
			joined, s.whole = true, true
			l.logger.Info("a standby is in sync", "address", s.name)
		}
		s.mu.Unlock()
		l.mu.Lock()
		l.wakeAll()
		l.mu.Unlock()
	}
}

// Standbys is the state of the standbys that follow a leader.
type Standbys struct {
	Connected int
	InSync    int
	// Acked is the newest commit that one in sync has acknowledged.
	Acked uint64
	// Lag is how long ago the oldest commit was made that none in sync has acknowledged; with none in sync, none that is connected.
	Lag time.Duration
}

// Standbys returns what is known now.
func (l *Leader) Standbys() Standbys {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, found := time.Now(), Standbys{Connected: len(l.standbys)}
	var behind []time.Duration
	for s := range l.standbys {
		acked, lag, ok := s.inSync(now)
		if !ok {
			behind = append(behind, lag)
			continue
		}
		if found.InSync++; found.InSync == 1 || acked > found.Acked {
			found.Acked, found.Lag = acked, lag
		}
	}
	if found.InSync == 0 && len(behind) > 0 {
		found.Lag = slices.Min(behind)
	}
	return found
}

// AwaitAck waits until a standby has acknowledged the commit that is the last one now, or ctx ends. It returns false at once if none is in
// sync.
func (l *Leader) AwaitAck(ctx context.Context) bool {
	l.mu.Lock()
	last := l.last
	l.mu.Unlock()
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		found := l.Standbys()
		if found.InSync == 0 {
			return false
		}
		if found.Acked >= last {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
