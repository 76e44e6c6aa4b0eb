package webhook

import (
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// relay passes connections on, until it loses what goes over those that there are: a firewall that forgot them.
type relay struct {
	listener net.Listener
	done     sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns []*valve
}

// valve is a connection whose writes get lost once it is shut.
type valve struct {
	net.Conn
	shut atomic.Bool
}

func (v *valve) Write(p []byte) (int, error) {
	if v.shut.Load() {
		return len(p), nil
	}
	return v.Conn.Write(p)
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener}
	r.done.Go(func() {
		for {
			here, err := listener.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				_ = here.Close()
				continue
			}
			r.pass(&valve{Conn: here}, &valve{Conn: there})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		r.each(func(v *valve) { _ = v.Close() })
		r.done.Wait()
	})
	return r
}

func (r *relay) pass(ends ...*valve) {
	r.mu.Lock()
	r.conns = append(r.conns, ends...)
	r.mu.Unlock()
	for i := range ends {
		r.done.Go(func() {
			_, _ = io.Copy(ends[i], struct{ io.Reader }{ends[1-i]})
			_ = ends[i].Close()
		})
	}
}

func (r *relay) each(do func(*valve)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		do(conn)
	}
}

// TestVanishedConnection: a connection of HTTP/2 whose other end is silently gone is found by pings, and another is made.
// They go out less often than a test can wait for, so it waits for a part of the time that is set.
func TestVanishedConnection(t *testing.T) {
	ca := sinktest.NewAuthority(t)
	r := newReceiver(t, ca.ServerConfig("127.0.0.1"))
	between := newRelay(t, r.addr)
	sink := open(t, func(c *Config) {
		c.URL = "https://" + between.listener.Addr().String()
		c.TLS = &sinks.TLS{CAFile: write(t, "ca.pem", ca.PEM())}
	})
	settings := sink.client.Transport.(*http.Transport).HTTP2
	if settings == nil || settings.SendPingTimeout <= 0 || settings.PingTimeout <= 0 || settings.SendPingTimeout+settings.PingTimeout > 30*time.Second {
		t.Fatalf("got settings %+v, want pings that find a vanished connection within 30 s", settings)
	}
	settings.SendPingTimeout, settings.PingTimeout = settings.SendPingTimeout/20, settings.PingTimeout/5
	if err := sink.Deliver(t.Context(), records(1, "a")); err != nil {
		t.Fatal(err)
	}
	between.each(func(v *valve) { v.shut.Store(true) })
	if class := sinks.Classify(sink.Deliver(t.Context(), records(1, "a"))); class == nil || class.Permanent {
		t.Errorf("over the vanished connection: got %v", class)
	}
	if err := sink.Deliver(t.Context(), records(1, "a")); err != nil {
		t.Errorf("after the pings: %v", err)
	}
	if got := r.count(); got != 2 {
		t.Errorf("got %d records, want 2", got)
	}
}
