package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// TestConnections counts connections: one for each call under way and no more, over HTTP/1.1, and one for all over
// HTTP/2, with any answers.
//
// It has a fake clock: net/http does not use a connection again whose goroutines were not scheduled for 50 ms.
func TestConnections(t *testing.T) {
	for _, test := range []struct {
		name  string
		proto int
		conns int
	}{
		{"HTTP/1.1", 1, callers},
		{"HTTP/2", 2, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if conns, proto := countConnections(t, test.proto); conns != test.conns || proto != test.proto {
					t.Errorf("got %d connections of HTTP/%d, want %d", conns, proto, test.conns)
				}
			})
		})
	}
}

const callers = 8

func countConnections(t *testing.T, wanted int) (conns, proto int) {
	network := newPipes()
	var serverTLS *tls.Config
	var clientTLS *sinks.TLS
	if wanted == 2 {
		ca := sinktest.NewAuthority(t)
		serverTLS, clientTLS = ca.ServerConfig("127.0.0.1"), &sinks.TLS{CAFile: write(t, "ca.pem", ca.PEM())}
		serverTLS.SessionTicketsDisabled = true // written while the client writes too, they would wait for each other for ever
	}
	r := newReceiverOn(t, serverTLS, network)
	sink := open(t, func(c *Config) { c.URL, c.TLS, c.Concurrency = r.url(), clientTLS, callers })
	sink.client.Transport.(*http.Transport).DialContext = network.dial
	for n := range 20 {
		if err := sink.Deliver(t.Context(), records(1, fmt.Sprint("alone", n))); err != nil {
			t.Fatal(err)
		}
	}
	if r.conns != 1 {
		t.Errorf("got %d connections for requests one after the other, want 1", r.conns)
	}
	// All callers are in a request at the same moment, then go on as they like.
	var together sync.WaitGroup
	together.Add(callers)
	r.setAnswer(func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		switch {
		case strings.Contains(string(body), "/1/"):
			together.Done()
			together.Wait()
		case strings.Contains(string(body), "/7/"):
			w.WriteHeader(http.StatusServiceUnavailable)
			return false
		}
		return true
	})
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for n := range 50 {
				err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord(fmt.Sprint("w", caller), n+1)})
				if (err != nil) != (n+1 == 7) {
					t.Errorf("caller %d, request %d: %v", caller, n, err)
				}
			}
		})
	}
	wg.Wait()
	return r.conns, r.requests[0].ProtoMajor
}

// pipes is a network in memory, as a fake clock needs it.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipes() *pipes {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements [net.Listener].
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (p *pipes) Close() error {
	p.close()
	return nil
}

// Addr implements [net.Listener].
func (*pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// TestFewStreams: a server that allows one HTTP/2 stream at a time gets more connections, and one that sends each
// connection away after a while is reconnected to.
func TestFewStreams(t *testing.T) {
	ca := sinktest.NewAuthority(t)
	var requests atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1)%20 == 0 {
			w.Header().Set("Connection", "close") // GOAWAY
		}
	}))
	server.EnableHTTP2, server.TLS = true, ca.ServerConfig("127.0.0.1")
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
	server.StartTLS()
	defer server.Close()
	sink := open(t, func(c *Config) {
		c.URL, c.TLS, c.Timeout = server.URL, &sinks.TLS{CAFile: write(t, "ca.pem", ca.PEM())}, 20*time.Second
	})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for n := range 50 {
				if err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord(fmt.Sprint("w", worker), n)}); err != nil {
					t.Errorf("worker %d, request %d: %v", worker, n, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestTLS(t *testing.T) {
	ca, stranger := sinktest.NewAuthority(t), sinktest.NewAuthority(t)
	caFile := write(t, "ca.pem", ca.PEM())
	tests := []struct {
		name   string
		server *tls.Config
		tls    *sinks.TLS
		ok     bool
	}{
		{"private CA", ca.ServerConfig("127.0.0.1"), &sinks.TLS{CAFile: caFile}, true},
		{"system's CAs", ca.ServerConfig("127.0.0.1"), nil, false},
		{"another CA", stranger.ServerConfig("127.0.0.1"), &sinks.TLS{CAFile: caFile}, false},
		{"another address", ca.ServerConfig("127.0.0.2"), &sinks.TLS{CAFile: caFile}, false},
		{"another name", ca.ServerConfig("example.com"), &sinks.TLS{CAFile: caFile}, false},
		{"server name", ca.ServerConfig("example.com"), &sinks.TLS{CAFile: caFile, ServerName: "example.com"}, true},
		{"not verified", stranger.ServerConfig("example.com"), &sinks.TLS{InsecureSkipVerify: true}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newReceiver(t, test.server)
			err := open(t, func(c *Config) { c.URL, c.TLS = r.url(), test.tls }).Deliver(t.Context(), records(1, "a"))
			if (err == nil) != test.ok {
				t.Errorf("got error %v, want success %t", err, test.ok)
			}
			if class := sinks.Classify(err); class != nil && (class.Permanent || class.Reason != sinks.ReasonUnreachable) {
				t.Errorf("got %s, permanent %t; want a transient %s", class.Reason, class.Permanent, sinks.ReasonUnreachable)
			}
		})
	}
}

func TestClientCertificateRotates(t *testing.T) {
	ca := sinktest.NewAuthority(t)
	serverConfig := ca.ServerConfig("127.0.0.1")
	serverConfig.ClientAuth, serverConfig.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool()
	r := newReceiver(t, serverConfig)

	stranger := sinktest.NewAuthority(t)
	cert, key := stranger.Issue("stranger")
	certFile, keyFile := write(t, "cert.pem", cert), write(t, "key.pem", key)
	sink := open(t, func(c *Config) {
		c.URL = r.url()
		c.TLS = &sinks.TLS{CAFile: write(t, "ca.pem", ca.PEM()), CertFile: certFile, KeyFile: keyFile}
	})
	// HTTP/2 hides why the connection ended: TLS 1.3 refuses a certificate only after the handshake.
	class := sinks.Classify(sink.Deliver(t.Context(), records(1, "a")))
	if class == nil || class.Permanent || class.Reason != sinks.ReasonUnauthorized && class.Reason != sinks.ReasonUnreachable {
		t.Errorf("certificate of a stranger: got %v, want a transient %s", class, sinks.ReasonUnauthorized)
	}
	for _, name := range []string{"first", "second"} {
		cert, key := ca.Issue(name)
		rewrite(t, certFile, cert)
		rewrite(t, keyFile, key)
		r.server.CloseClientConnections()
		// The request that finds the old connection closed may fail, once.
		err := sink.Deliver(t.Context(), records(1, name))
		if err != nil {
			err = sink.Deliver(t.Context(), records(1, name))
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := r.requests[len(r.requests)-1].TLS.PeerCertificates[0].Subject.CommonName; got != name {
			t.Errorf("got client certificate %q, want %q", got, name)
		}
	}
}

// TestAuthorityRotates replaces caFile while the sink is open: the next connection trusts the new authority, and the old
// one no longer.
func TestAuthorityRotates(t *testing.T) {
	before, after := sinktest.NewAuthority(t), sinktest.NewAuthority(t)
	var current atomic.Pointer[tls.Config]
	current.Store(before.ServerConfig("127.0.0.1"))
	serverConfig := before.ServerConfig("127.0.0.1")
	serverConfig.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return current.Load(), nil }
	r := newReceiver(t, serverConfig)
	caFile := write(t, "ca.pem", before.PEM())
	sink := open(t, func(c *Config) { c.URL, c.TLS = r.url(), &sinks.TLS{CAFile: caFile} })
	// The request that finds the old connection closed may fail, so that a step may take a few.
	deliver := func(step string, want func(error) bool) {
		t.Helper()
		var err error
		for range 5 {
			if err = sink.Deliver(t.Context(), records(1, "a")); want(err) {
				return
			}
		}
		t.Errorf("%s: got %v", step, err)
	}
	taken := func(err error) bool { return err == nil }
	refused := func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "x509: ") && sinks.Classify(err).Reason == sinks.ReasonUnreachable
	}
	deliver("the first authority", taken)
	current.Store(after.ServerConfig("127.0.0.1"))
	r.server.CloseClientConnections()
	deliver("the receiver has another", refused)
	rewrite(t, caFile, after.PEM())
	deliver("caFile has it too", taken)
	current.Store(before.ServerConfig("127.0.0.1"))
	r.server.CloseClientConnections()
	deliver("the receiver goes back", refused)
}

func TestRedirectIsNotFollowed(t *testing.T) {
	r := newReceiver(t, nil)
	elsewhere := newReceiver(t, nil)
	r.setAnswer(func(w http.ResponseWriter, req *http.Request, _ []byte) bool {
		http.Redirect(w, req, elsewhere.url()+"?token=hidden", http.StatusTemporaryRedirect)
		return false
	})
	err := open(t, func(c *Config) { c.URL = r.url() }).Deliver(t.Context(), records(1, "a"))
	class := sinks.Classify(err)
	if class == nil || class.Permanent || !strings.Contains(err.Error(), "redirects are not followed") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("got %v", err)
	}
	if len(elsewhere.requests) != 0 {
		t.Error("the redirect was followed")
	}
	r.setAnswer(func(w http.ResponseWriter, req *http.Request, _ []byte) bool {
		http.Redirect(w, req, "http://"+strings.Repeat("a.", 10_000), http.StatusTemporaryRedirect)
		return false
	})
	if err := open(t, func(c *Config) { c.URL = r.url() }).Deliver(t.Context(), records(1, "a")); err == nil || len(err.Error()) > 1000 {
		t.Errorf("got an error of %d characters, want it cut", len(err.Error()))
	}
}

func TestTimeoutIsTheSinksOwn(t *testing.T) {
	r := newReceiver(t, nil)
	r.hang()
	sink := open(t, func(c *Config) { c.URL, c.Timeout = r.url(), 50*time.Millisecond })
	class := sinks.Classify(sink.Deliver(t.Context(), records(1, "a")))
	if class == nil || class.Permanent || class.Reason != sinks.ReasonTimeout {
		t.Errorf("got %v, want %s", class, sinks.ReasonTimeout)
	}
}
