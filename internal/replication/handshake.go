package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

const (
	// helloTimeout bounds a connection until its peer is authenticated.
	helloTimeout = 5 * time.Second
	// maxUnauthenticated bounds the connections whose peer is not authenticated yet, and maxReviews the tokens that are checked at once.
	maxUnauthenticated = 32
	maxReviews         = 4
)

// unauthenticated is a connection whose peer is not authenticated yet.
type unauthenticated struct {
	conn  net.Conn
	heard chan struct{} // closed once nothing reads from it any more: only then a connection that was cut frees its file
	gone  chan struct{} // closed when it was cut to make room: it waits for no review
}

// authenticate checks that the peer of a connection is a replica, and proves to it that this process is the leader.
func (l *Leader) authenticate(ctx context.Context, from *unauthenticated) error {
	conn := from.conn
	_ = conn.SetDeadline(time.Now().Add(helloTimeout)) // fails with the connection
	var h hello
	err := readHello(conn, &h)
	close(from.heard)
	if err != nil {
		return fmt.Errorf("no hello: %w", err)
	}
	select {
	case l.reviews <- struct{}{}:
		defer func() { <-l.reviews }()
	case <-from.gone:
		return net.ErrClosed
	case <-time.After(helloTimeout):
		return errors.New("too many connections")
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	if err := l.auth.Check(ctx, audience(l.certificate), h.Token); err != nil {
		_ = writeHello(conn, helloAnswer{Refused: "the token is refused"})
		return err
	}
	if !slices.Contains(h.Protocols, protocol) {
		_ = writeHello(conn, helloAnswer{Refused: fmt.Sprintf("this leader speaks protocol %d", protocol)})
		return fmt.Errorf("a standby that speaks protocols %v only", h.Protocols)
	}
	token, err := l.auth.Token(ctx, leaderAudience(l.certificate))
	if err != nil {
		return err
	}
	if err := writeHello(conn, helloAnswer{Protocol: protocol, Token: token}); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// addUnauthenticated closes the oldest one beyond the bound, so that idle connections keep no standby out, and returns when its file is
// free. It returns nil if the leader is closed.
func (l *Leader) addUnauthenticated(conn net.Conn) *unauthenticated {
	from := &unauthenticated{conn, make(chan struct{}), make(chan struct{})}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	var oldest *unauthenticated
	if len(l.unauthenticated) >= maxUnauthenticated {
		oldest = l.unauthenticated[0]
		l.unauthenticated = l.unauthenticated[1:]
		cut(oldest.conn)
		close(oldest.gone)
	}
	l.unauthenticated = append(l.unauthenticated, from)
	l.mu.Unlock()
	if oldest != nil {
		<-oldest.heard
	}
	return from
}

func (l *Leader) removeUnauthenticated(from *unauthenticated) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unauthenticated = slices.DeleteFunc(l.unauthenticated, func(other *unauthenticated) bool { return other == from })
}

// refuse logs the first connection that is refused for a reason. Any Pod may connect as often as it likes.
func (l *Leader) refuse(conn net.Conn, err error) {
	kind := "other"
	if errors.Is(err, errRefused) {
		kind = "token"
	}
	l.mu.Lock()
	first := !l.refused[kind] && !l.closed
	l.refused[kind] = true
	l.mu.Unlock()
	if first {
		l.logger.Warn("a connection to the port for standbys is refused; further refusals are not logged", "address", conn.RemoteAddr().String(), "err", err)
	}
}
