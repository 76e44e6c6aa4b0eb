package sinks

import (
	"context"
	"net"
	"time"
)

// DialFunc is the signature of [net.Dialer.DialContext].
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// DialUntil returns a function that connects within timeout. When life ends, it gives up and closes each connection
// that it made, also during a read or a write.
func DialUntil(life context.Context, timeout time.Duration) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		raw, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: raw, release: context.AfterFunc(life, func() { _ = raw.Close() })}, nil
	}
}

type conn struct {
	net.Conn
	release func() bool
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.release()
	return c.Conn.Close()
}
