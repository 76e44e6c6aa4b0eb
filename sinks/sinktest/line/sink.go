package line

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// Sink sends lines to one server. It makes a connection for each batch; one that kept them would close them in Close.
type Sink struct {
	config *Config
}

var (
	_ sinks.Sink    = (*Sink)(nil)
	_ sinks.Checker = (*Sink)(nil)
)

// Deliver implements [sinks.Sink].
func (s *Sink) Deliver(ctx context.Context, batch []sinks.Record) error {
	if len(batch) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	c, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	errs := make([]error, len(batch))
	for i := range batch {
		// Lines have no headers, so the record is in its structured form.
		errs[i] = c.exchange(ctx, batch[i].DedupID+" "+string(batch[i].Structured()))
	}
	if errors.Join(errs...) == nil {
		return nil
	}
	return &sinks.BatchError{Errs: errs}
}

// Check implements [sinks.Checker], for kubeferry validate --connect: it logs in.
func (s *Sink) Check(ctx context.Context) error {
	c, err := s.dial(ctx)
	if err == nil {
		c.close()
	}
	return err
}

// Close implements [sinks.Sink].
func (s *Sink) Close(context.Context) error { return nil }

// conn is a connection that is logged in.
type conn struct {
	net.Conn
	answers *bufio.Reader
	stop    func() bool
}

func (s *Sink) dial(ctx context.Context) (*conn, error) {
	token, err := sinks.ReadSecret("tokenFile", s.config.TokenFile, "")
	if err != nil {
		return nil, err // sinks.Classify classifies it
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.config.Address)
	if err != nil {
		return nil, err // sinks.Classify classifies the errors of package net
	}
	// Reads and writes do not end with ctx; a deadline in the past ends them.
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	c := &conn{Conn: raw, answers: bufio.NewReader(raw), stop: stop}
	if err := c.exchange(ctx, token); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// exchange sends a line and classifies the answer.
func (c *conn) exchange(ctx context.Context, line string) error {
	_, err := c.Write([]byte(line + "\n"))
	answer := ""
	if err == nil {
		answer, err = c.answers.ReadString('\n')
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("no answer from %s: %w", c.RemoteAddr(), ctx.Err())
	case err != nil:
		return sinks.Transient(sinks.ReasonUnreachable, fmt.Errorf("exchange a line with %s: %w", c.RemoteAddr(), err))
	}
	// The server's answer is not repeated: it may hold the token.
	switch strings.TrimSpace(answer) {
	case "ok":
		return nil
	case "never":
		return sinks.Permanent(sinks.ReasonRejected, errors.New("the server can never take this record"))
	case "denied":
		return sinks.Transient(sinks.ReasonUnauthorized, errors.New("the server refuses the token: check tokenFile"))
	default:
		return sinks.Transient(sinks.ReasonUnavailable, errors.New("the server cannot take anything now"))
	}
}

func (c *conn) close() {
	c.stop()
	_ = c.Close()
}
