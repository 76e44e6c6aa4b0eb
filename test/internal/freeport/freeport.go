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

// Pick returns a port of 127.0.0.1 that nothing listens on at this moment, and that no call returns again while this process runs, in it
// or in another: the server of a test may be down for a while. Its UDP port, which no server has, stays taken as the sign of that.
func Pick() (int, error) {
	const attempts = 100
	for range attempts {
		port := first + rand.IntN(last-first)
		sign, err := net.ListenPacket("udp", Addr(port))
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", Addr(port))
		if err != nil {
			_ = sign.Close()
			continue
		}
		signs.Store(port, sign) // else it is closed with the garbage
		return port, l.Close()
	}
	return 0, errors.New("no free port found")
}

// signs has the UDP sockets of the ports that this process picked.
var signs sync.Map

// Addr is port on the loopback address, as host:port.
func Addr(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
