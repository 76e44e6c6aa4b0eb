package admin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func start(t *testing.T) string {
	t.Helper()
	return startWith(t, func(bool) any { return nil })
}

func startWith(t *testing.T, status func(rates bool) any) string {
	t.Helper()
	well := func() error { return nil }
	probes := Probes{Healthy: well, Ready: well, Status: status}
	server, err := Listen(t.Context(), "127.0.0.1:0", prometheus.NewRegistry(), probes, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Close(ctx) // connections that the test holds are left
		serving.Wait()
	})
	return server.Address()
}

// hold opens a connection from an address and sends half of a request.
func hold(t *testing.T, from, address string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n"); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Probes get through while others hold all the connections that they can: the connection that the prober had is closed as the oldest, and
// it connects anew.
func TestHeldConnections(t *testing.T) {
	address := start(t)
	kubelet := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(kubelet.CloseIdleConnections)
	probe := func() {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/healthz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := kubelet.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if text, err := io.ReadAll(response.Body); err != nil || string(text) != "ok\n" {
			t.Errorf("got %q, %v", text, err)
		}
	}
	probe()
	first := hold(t, "127.0.0.3", address)
	for range 2 * maxConnections {
		hold(t, "127.0.0.3", address)
	}
	probe()
	if err := first.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil { // before its request is given up
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the oldest connection of the others is open: %v", err)
	}
	for n := range maxConnections {
		hold(t, net.IPv4(127, 0, 1, byte(n)).String(), address)
	}
	kubelet.CloseIdleConnections()
	probe()
}

// A request that does not end is given up.
func TestSlowRequest(t *testing.T) {
	conn := hold(t, "127.0.0.1", start(t))
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
		t.Error("the connection is still open")
	}
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// TestOneAnswerAtATime: however many requests come, one answer is made at a time. Probes and scrapes do not wait for it.
func TestOneAnswerAtATime(t *testing.T) {
	var now, most atomic.Int32
	begun, goOn := make(chan struct{}, 100), make(chan struct{})
	address := startWith(t, func(bool) any {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		begun <- struct{}{}
		<-goOn
		return nil
	})
	get := func(path string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Error(err)
			return
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			return
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() { get("/status") })
		clients.Go(func() { get("/status?rates") })
	}
	<-begun
	get("/healthz")
	get("/metrics")
	get("/")
	close(goOn)
	clients.Wait()
	if most.Load() != 1 {
		t.Errorf("%d answers at once", most.Load())
	}
}
