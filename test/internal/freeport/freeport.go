// Package freeport picks TCP ports for servers that cannot listen on port 0 because they must come back
// on the same port after a restart.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The range lies below the ephemeral ports of Linux (32768 and up) and of macOS and Windows (49152 and up). No
// outgoing connection can therefore take a server's port while the server is down, and a client that dials
// a dead server cannot end up connected to itself, which happens on loopback with ephemeral ports.
const (
	first = 20000
	last  = 32000
)

// picked has the ports that this process picked: tests run side by side, and the server of one may be down for a while.
var picked sync.Map

// Pick returns a port of 127.0.0.1 that nothing listens on at this moment, and never the same one again. Another process may take it before the
// caller does, so a caller should be ready to try again with another one.
func Pick() (int, error) {
	const attempts = 100
	for range attempts {
		port := first + rand.IntN(last-first)
		if _, before := picked.LoadOrStore(port, true); before {
			continue
		}
		l, err := net.Listen("tcp", Addr(port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		return port, nil
	}
	return 0, errors.New("no free port found")
}

// Addr is port on the loopback address, as host:port.
func Addr(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
