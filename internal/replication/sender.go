package replication

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
)

// This file is the leader's end of the connection to one standby: the queue of commits, and what is sent.

const (
	// maxQueue bounds what waits for one standby. One that is slower is dropped, and starts over.
	maxQueue = 64 << 20
	// ackTimeout is how long a standby may take for a commit.
	ackTimeout = 30 * time.Second
	// rangeBytes is how much of the copy is read in one transaction.
	rangeBytes = 1 << 20
	// writeTimeout bounds the sending of a frame.
	writeTimeout = 10 * time.Second
	// inSyncWithin is how old the oldest commit may be that a standby in sync has not acknowledged.
	inSyncWithin = 5 * time.Second
)

// commit is one that standbys are sent.
type commit struct {
	number  uint64
	at      time.Time
	changes []checkpoint.Changes
	bytes   int
}

// standby is one that is connected.
type standby struct {
	conn net.Conn
	name string

	mu    sync.Mutex // guards what follows
	queue []*commit
	bytes int // of the queue, and of what is being written
	wake  chan struct{}
	// unacked are the commits that it has not acknowledged, without their changes.
	unacked []commit
	whole   bool   // it has acknowledged the whole copy
	wholeAt uint64 // the commit that its copy equals at its end; 0 while that is not sent
	acked   uint64
	heard   time.Time // when it acknowledged something last
	base    uint64    // the last commit before it was connected
	dropped error
}

// enqueue adds a commit.
func (s *standby) enqueue(c *commit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped != nil {
		return
	}
	s.queue, s.unacked, s.bytes = append(s.queue, c), append(s.unacked, commit{number: c.number, at: c.at}), s.bytes+c.bytes
	switch {
	case s.bytes > maxQueue:
		s.drop(fmt.Errorf("the standby is too slow: %d bytes wait for it", s.bytes))
	case s.whole && time.Since(s.unacked[0].at) > ackTimeout:
		s.drop(fmt.Errorf("the standby is too slow: it has not acknowledged a commit for %v", ackTimeout))
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// drop ends a connection; s.mu is held.
func (s *standby) drop(err error) {
	s.dropped, s.queue, s.bytes = err, nil, 0
	cut(s.conn)
}

// cut closes a connection without the farewell of TLS, which may block.
func cut(conn net.Conn) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close()
}

// send sends the copy, with the commits meanwhile between its parts, and then each commit.
//
// A part is read in a transaction that begins after the last commit was sent, so it is no older than what was sent before; and
// what is both in it and in a later commit is the same.
func (s *standby) send(ctx context.Context, source StateReader) error {
	out := bufio.NewWriterSize(deadlineWriter{s.conn}, 64<<10)
	sent, newest := s.base, uint64(0)
	var err error
	var at *checkpoint.Range
	for more := true; more; more = at != nil {
		if sent, err = s.flush(out, sent); err != nil {
			return err
		}
		var changes checkpoint.Changes
		var number uint64
		if changes, at, number, err = source.ReadRange(at, rangeBytes); err != nil {
			return fmt.Errorf("read the state: %w", err)
		}
		if err := writeFrame(out, frameRange, changes); err != nil {
			return err
		}
		newest = max(newest, number)
	}
	whole := false
	ticker := time.NewTicker(aliveInterval)
	defer ticker.Stop()
	for {
		if sent, err = s.flush(out, sent); err != nil {
			return err
		}
		if !whole && sent >= newest { // the last part may be ahead of the commits in the queue
			whole = true
			s.mu.Lock()
			s.wholeAt = sent
			s.mu.Unlock()
			if err := writeFrame(out, frameWhole, progress(sent)); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil {
			return err
		}
		select {
		case <-s.wake:
		case <-ticker.C:
			if err := writeFrame(out, frameAlive, progress(sent)); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// flush writes the commits that are queued, and returns the number of the last one.
func (s *standby) flush(out *bufio.Writer, sent uint64) (uint64, error) {
	s.mu.Lock()
	queued, err := s.queue, s.dropped
	s.queue = nil
	s.mu.Unlock()
	if err != nil {
		return sent, err
	}
	for _, c := range queued {
		for _, part := range c.changes {
			if err := writeFrame(out, frameChange, part); err != nil {
				return sent, err
			}
		}
		if err := writeFrame(out, frameCommit, progress(c.number)); err != nil {
			return sent, err
		}
		sent = c.number
		s.mu.Lock()
		s.bytes -= c.bytes
		s.mu.Unlock()
	}
	return sent, nil
}

// deadlineWriter bounds each write to a connection.
type deadlineWriter struct{ conn net.Conn }

func (w deadlineWriter) Write(b []byte) (int, error) {
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return w.conn.Write(b)
}

// inSync reports whether a standby has the leader's state but for the last moments, and since when it lacks some. One that is silent
// is not: it acknowledges signs of life too.
func (s *standby) inSync(now time.Time) (acked uint64, lag time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unacked) > 0 {
		lag = now.Sub(s.unacked[0].at)
	}
	return s.acked, lag, s.whole && lag < inSyncWithin && now.Sub(s.heard) < inSyncWithin
}
