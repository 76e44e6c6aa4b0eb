package admin

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// maxConnections bounds the connections that are open. The kubelet and Prometheus need a handful.
const maxConnections = 64

// connections bounds what clients can hold open. Every Pod of a cluster may connect, and one that holds many connections must
// not keep the kubelet's probes out. So a new connection is always accepted, and beyond the bound closes another one: the
// oldest of the address that has the most.
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
			c.closeOne()
		}
	case http.StateClosed, http.StateHijacked:
		c.open = slices.DeleteFunc(c.open, func(other net.Conn) bool { return other == conn })
	default:
	}
}

func (c *connections) closeOne() {
	of := map[string]int{}
	for _, conn := range c.open {
		of[host(conn)]++
	}
	victim := 0
	for n, conn := range c.open {
		if of[host(conn)] > of[host(c.open[victim])] {
			victim = n
		}
	}
	_ = c.open[victim].Close()
	c.open = slices.Delete(c.open, victim, victim+1)
}

func host(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return host
}
