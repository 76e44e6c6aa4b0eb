package proxy

import (
	"bytes"
	"net"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
)

// TCP forwards connections. Its methods may be called from any goroutine, but for those that can fail: they fail the
// test, and belong on its own.
type TCP struct {
	tb   testing.TB
	addr string

	goroutines sync.WaitGroup
	mu         sync.Mutex // guards what follows
	target     string
	listener   net.Listener // nil while away
	conns      map[net.Conn]struct{}
	flowing    chan struct{} // closed unless it stalls
	stalled    bool
	stallAt    string        // what to stall at, if not empty
	held       chan struct{} // closed when stallAt has come
}

// NewTCP forwards to target until the test ends. It begins away: see Come.
func NewTCP(tb testing.TB, target string) *TCP {
	tb.Helper()
	port, err := freeport.Pick()
	if err != nil {
		tb.Fatal(err)
	}
	p := &TCP{tb: tb, addr: freeport.Addr(port), target: target, conns: map[net.Conn]struct{}{}, flowing: make(chan struct{})}
	close(p.flowing)
	tb.Cleanup(func() {
		p.flow()
		p.Leave()
		p.goroutines.Wait()
	})
	return p
}

// Addr is where it listens, host:port, when it does.
func (p *TCP) Addr() string { return p.addr }

// ForwardTo changes the target of later connections.
func (p *TCP) ForwardTo(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Come accepts connections and forwards from now on; it ends what Leave and Stall began.
func (p *TCP) Come() {
	p.tb.Helper()
	p.flow()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.tb.Fatalf("proxy: %v", err)
	}
	p.listener = listener
	p.goroutines.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.goroutines.Go(func() { p.serve(conn) })
		}
	})
}

// Leave refuses connections and breaks those there are.
func (p *TCP) Leave() {
	p.mu.Lock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.mu.Unlock()
	p.Cut()
}

// Cut breaks the connections there are.
func (p *TCP) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// Stall keeps connections open, accepts new ones, and lets nothing through until Come.
func (p *TCP) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stall()
}

// StallAt is Stall from the moment when text arrives, which must not be longer than what a client writes at once. The
// text itself is held back; held is closed then. Without it a test could only guess whether a stalled connection carries
// the request that it is about, or is still being made for it.
func (p *TCP) StallAt(text string) (held <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stallAt, p.held = text, make(chan struct{})
	return p.held
}

// stall is called with p.mu held.
func (p *TCP) stall() {
	if !p.stalled {
		p.stalled, p.flowing = true, make(chan struct{})
	}
}

// arrived returns the channel that data have to wait for.
func (p *TCP) arrived(data []byte) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stallAt != "" && bytes.Contains(data, []byte(p.stallAt)) {
		p.stall()
		close(p.held)
		p.stallAt = ""
	}
	return p.flowing
}

func (p *TCP) flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled {
		p.stalled = false
		close(p.flowing)
	}
}

func (p *TCP) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	p.mu.Lock()
	if p.listener == nil { // left meanwhile
		p.mu.Unlock()
		return
	}
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var copies sync.WaitGroup
	copies.Go(func() { p.pump(server, client) })
	copies.Go(func() { p.pump(client, server) })
	copies.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

// pump copies until one side ends, and ends the other.
func (p *TCP) pump(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		<-p.arrived(buffer[:n])
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
