package sinks_test

import (
	"net"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
)

// proxy stands between a sink and its peer, so that the peer can hang or go away without losing what it stored.
type proxy struct {
	tb   testing.TB
	addr string

	goroutines sync.WaitGroup
	mu         sync.Mutex // guards what follows
	target     string
	listener   net.Listener // nil while away
	conns      map[net.Conn]struct{}
	flowing    chan struct{} // closed unless hung
	hung       bool
}

func newProxy(tb testing.TB) *proxy {
	tb.Helper()
	p := &proxy{tb: tb, conns: map[net.Conn]struct{}{}, flowing: make(chan struct{})}
	close(p.flowing)
	port, err := freeport.Pick()
	if err != nil {
		tb.Fatal(err)
	}
	p.addr = freeport.Addr(port)
	p.listen()
	tb.Cleanup(func() {
		p.pass()
		p.leave()
		p.goroutines.Wait()
	})
	return p
}

func (p *proxy) forwardTo(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

func (p *proxy) listen() {
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.tb.Fatalf("proxy: %v", err)
	}
	p.mu.Lock()
	p.listener = listener
	p.mu.Unlock()
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

func (p *proxy) serve(client net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { p.copy(server, client) })
	wg.Go(func() { p.copy(client, server) })
	wg.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

// copy is io.Copy with a valve.
func (p *proxy) copy(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		flowing := p.flowing
		p.mu.Unlock()
		<-flowing
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// hang accepts connections and lets nothing through.
func (p *proxy) hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hung {
		p.hung, p.flowing = true, make(chan struct{})
	}
}

// leave refuses connections and breaks those there are.
func (p *proxy) leave() {
	p.mu.Lock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.mu.Unlock()
	p.cut()
}

// cut breaks the connections there are.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// pass undoes hang and leave.
func (p *proxy) pass() {
	p.mu.Lock()
	if p.hung {
		p.hung = false
		close(p.flowing)
	}
	away := p.listener == nil
	p.mu.Unlock()
	if away {
		p.listen()
	}
}
