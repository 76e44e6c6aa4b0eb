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
	// maxStrangers bounds the connections whose peer is not authenticated yet, and maxReviews the tokens that are checked at once.
	maxStrangers = 32
	maxReviews   = 4
)

// stranger is a connection whose peer is not authenticated yet.
type stranger struct {
	conn  net.Conn
	heard chan struct{} // closed once nothing reads from it any more: only then a connection that was cut frees its file
	gone  chan struct{} // closed when it was cut to make room: it waits for no review
}

// greet authenticates the peer of a connection as a replica, and this leader to the peer.
func (l *Leader) greet(ctx context.Context, from *stranger) error {
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
		_ = writeHello(conn, welcome{Refused: "the token is refused"})
		return err
	}
	if !slices.Contains(h.Protocols, protocol) {
		_ = writeHello(conn, welcome{Refused: fmt.Sprintf("this leader speaks protocol %d", protocol)})
		return fmt.Errorf("a standby that speaks protocols %v only", h.Protocols)
	}
	token, err := l.auth.Token(ctx, leaderAudience(l.certificate))
	if err != nil {
		return err
	}
	if err := writeHello(conn, welcome{Protocol: protocol, Token: token}); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// addStranger closes the oldest one beyond the bound, so that idle connections keep no standby out, and returns when its file is
// free. It returns nil if the leader is closed.
func (l *Leader) addStranger(conn net.Conn) *stranger {
	from := &stranger{conn, make(chan struct{}), make(chan struct{})}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	var oldest *stranger
	if len(l.strangers) >= maxStrangers {
		oldest = l.strangers[0]
		l.strangers = l.strangers[1:]
		cut(oldest.conn)
		close(oldest.gone)
	}
	l.strangers = append(l.strangers, from)
	l.mu.Unlock()
	if oldest != nil {
		<-oldest.heard
	}
	return from
}

func (l *Leader) removeStranger(from *stranger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strangers = slices.DeleteFunc(l.strangers, func(other *stranger) bool { return other == from })
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
		l.logger.Warn("a connection to the port for standbys is refused; further ones are not logged", "address", conn.RemoteAddr().String(), "err", err)
	}
}
