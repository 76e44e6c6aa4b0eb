package app

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/replication"
)

// swallower passes connections on to an API server, until it swallows what they carry, as when the machine at the other end loses its
// power: nothing comes back, and no connection is closed. New ones get through.
type swallower struct {
	net.Listener
	target string

	mu      sync.Mutex // guards what follows
	current *atomic.Bool
	conns   []net.Conn
}

func newSwallower(t *testing.T, target string) *swallower {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &swallower{Listener: listener, target: target, current: new(atomic.Bool)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				_ = near.Close()
				continue
			}
			s.mu.Lock()
			swallowed := s.current
			s.conns = append(s.conns, near, far)
			s.mu.Unlock()
			running.Go(func() { pass(far, near, swallowed) })
			running.Go(func() { pass(near, far, swallowed) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			_ = c.Close()
		}
		s.mu.Unlock()
		running.Wait()
	})
	return s
}

func pass(to, from net.Conn, swallowed *atomic.Bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err == nil && swallowed.Load() {
			continue
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			_ = to.Close()
			return
		}
	}
}

// swallow begins with the connections that there are.
func (s *swallower) swallow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(true)
	s.current = new(atomic.Bool)
}

// After a request that got no answer the next one has a connection of its own, also if the API server speaks HTTP/2. Credentials stay.
func TestLeaseRequestsLeaveADeadConnection(t *testing.T) {
	var token atomic.Value
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token.Store(r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"l"}}`)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	between := newSwallower(t, server.Listener.Addr().String())
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("of-the-file"), 0o600); err != nil {
		t.Fatal(err)
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	cluster := &rest.Config{
		Host: "https://" + between.Addr().String(), TLSClientConfig: rest.TLSClientConfig{CAData: authority}, BearerTokenFile: file,
	}
	config := leaseConfig(cluster, 7*time.Second)
	if config.Timeout != 3500*time.Millisecond || cluster.NextProtos != nil {
		t.Errorf("a time-out of %v; what others use: %v", config.Timeout, cluster.NextProtos)
	}
	api, err := replication.NewAPI(config)
	if err != nil {
		t.Fatal(err)
	}
	get := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := api.Leases("n").Get(ctx, "l")
		return err
	}
	if err := get(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	between.swallow()
	if err := get(300 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v over a connection that lets nothing through", err)
	}
	if err := get(10 * time.Second); err != nil {
		t.Errorf("the next request: %v", err)
	}
	if got := token.Load(); got != "Bearer of-the-file" {
		t.Errorf("got the token %q", got)
	}
}
