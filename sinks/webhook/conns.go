package webhook

import (
	"context"
	"net"
	"sync"
)

// conns knows the connections there are, so that Close can end them: net/http closes those it takes for idle, and a
// connection of HTTP/2 is not idle yet for a moment after its last response.
type conns struct {
	mu   sync.Mutex // guards open
	open map[net.Conn]struct{}
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// watch returns dial, with its connections known.
func (c *conns) watch(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn := &watched{Conn: raw, conns: c}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open == nil {
			c.open = map[net.Conn]struct{}{}
		}
		c.open[raw] = struct{}{}
		return conn, nil
	}
}

func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for raw := range c.open {
		_ = raw.Close()
	}
	c.open = nil
}

type watched struct {
	net.Conn
	conns *conns
}

func (w *watched) Close() error {
	w.conns.mu.Lock()
	delete(w.conns.open, w.Conn)
	w.conns.mu.Unlock()
	return w.Conn.Close()
}
