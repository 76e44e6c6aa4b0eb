package replication

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// What a peer sends that is not known to be a replica fills no log, and neither does an error with a port that differs each time.
func TestFewLinesWithoutALeader(t *testing.T) {
	for name, test := range map[string]struct {
		meet func(conn *tls.Conn, n int)
		want string
	}{
		"refused with another text each time": {func(conn *tls.Conn, n int) {
			_ = writeHello(conn, helloAnswer{Refused: fmt.Sprint(n, strings.Repeat("x", 10_000))})
		}, "refuses the connection: 1xxx"},
		"another protocol each time": {func(conn *tls.Conn, n int) {
			_ = writeHello(conn, helloAnswer{Protocol: 1000 + n})
		}, "speaks protocol 1001,"},
		"another number that is too large each time": {func(conn *tls.Conn, n int) {
			_ = writeFrame(conn, frameHello, fmt.Appendf(nil, `{"protocol": %d%s}`, n, strings.Repeat("0", 10_000)))
		}, "a frame that makes no sense"},
		"reset": {func(conn *tls.Conn, _ int) {
			_ = conn.NetConn().(*net.TCPConn).SetLinger(0)
			_ = conn.NetConn().Close()
		}, "connection reset by peer"},
	} {
		t.Run(name, func(t *testing.T) {
			certificate, sum, err := newCertificate()
			if err != nil {
				t.Fatal(err)
			}
			config := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
			listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			server, leader := &slowServer{}, "leader"
			lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &leader}}
			lease.Annotations = map[string]string{annotationAddress: listener.Addr().String(), annotationCertificate: sum}
			server.put(lease)
			view := NewLease(LeaseOptions{Client: server, Name: "l", Identity: "standby", Claim: func() Claim { return Claim{} }})
			if err := view.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&log, nil))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var running sync.WaitGroup
			running.Go(func() {
				NewStandby(view, NewElection(view, time.Second, logger), nil, nobody{}, 20*time.Millisecond, logger).Run(ctx)
			})
			for n := 1; n <= 5; n++ {
				conn, err := listener.Accept()
				if err != nil {
					t.Fatal(err)
				}
				if err := readHello(conn, &hello{}); err != nil {
					t.Error(err)
				}
				test.meet(conn.(*tls.Conn), n)
				_ = conn.Close()
			}
			cancel()
			running.Wait()
			if text := log.String(); strings.Count(text, "\n") != 1 || len(text) > 500 || !strings.Contains(text, test.want) {
				t.Errorf("got %d bytes: %.2000s", len(text), text)
			}
		})
	}
}
