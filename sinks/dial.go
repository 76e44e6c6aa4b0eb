package sinks

import (
	"context"
	"io"
	"net"
	"sync"
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

// copyBuffers hold a whole batch as a rule.
var copyBuffers = sync.Pool{New: func() any { return new([128 << 10]byte) }}

// ReadFrom implements [io.ReaderFrom]. net/http copies the body of a request by it: without, in pieces of 32 KiB, into new memory each time.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	buffer := copyBuffers.Get().(*[128 << 10]byte)
	defer copyBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, r, buffer[:])
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.release()
	return c.Conn.Close()
}
