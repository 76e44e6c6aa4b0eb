package admin

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// maxConnections bounds the connections that are open. The kubelet and Prometheus need a handful.
const maxConnections = 64

// connections bounds what clients can hold open. Every Pod of a cluster may connect. A listener that accepts no more than the bound would
// let one Pod keep the kubelet's probes out, and so restart this one. So a new connection is always accepted, and beyond the bound the
// oldest is closed: a probe is answered long before it is the oldest, and Prometheus connects anew.
type connections struct {
	mu   sync.Mutex // guards what follows
	open []net.Conn // the oldest first
}

// changed is called by the server for each change of a connection's state.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open = append(c.open, conn)
		if len(c.open) > maxConnections {
			_ = c.open[0].Close()
			c.open = slices.Delete(c.open, 0, 1)
		}
	case http.StateClosed, http.StateHijacked:
		c.open = slices.DeleteFunc(c.open, func(other net.Conn) bool { return other == conn })
	default:
	}
}
