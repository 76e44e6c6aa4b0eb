package e2e_test

import (
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/freeport"
)

// proxy stands between the exporter and the API server, or a sink, so that one can be cut off from the other while
// the test still reaches both.
type proxy struct {
	tb     testing.TB
	addr   string
	target string

	goroutines sync.WaitGroup
	mu         sync.Mutex // guards what follows
	listener   net.Listener
	conns      map[net.Conn]struct{}
}

// newProxy forwards to target until the test ends; it starts absent.
func newProxy(tb testing.TB, target string) *proxy {
	tb.Helper()
	port, err := freeport.Pick()
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{tb: tb, addr: freeport.Addr(port), target: target, conns: map[net.Conn]struct{}{}}
	tb.Cleanup(func() {
		p.Leave()
		p.goroutines.Wait()
	})
	return p
}

// proxyOf stands before an API server. The kubeconfig is that of config through the proxy.
func proxyOf(tb testing.TB, config *rest.Config) (p *proxy, kubeconfig string) {
	tb.Helper()
	p = newProxy(tb, strings.TrimPrefix(config.Host, "https://"))
	config = rest.CopyConfig(config)
	config.Host = "https://" + p.addr
	return p, writeKubeconfig(tb, config)
}

func writeKubeconfig(tb testing.TB, config *rest.Config) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := controlplane.WriteKubeconfig(file, config); err != nil {
		tb.Fatal(err)
	}
	return file
}

// Come accepts connections from now on.
func (p *proxy) Come() {
	p.tb.Helper()
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

// Leave refuses connections and breaks those there are.
func (p *proxy) Leave() {
	p.mu.Lock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.mu.Unlock()
	p.Cut()
}

// Cut breaks the connections there are.
func (p *proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.target)
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
	copies.Go(func() { pump(server, client) })
	copies.Go(func() { pump(client, server) })
	copies.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

// pump copies until one side ends, and ends the other.
func pump(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
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
