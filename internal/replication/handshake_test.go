package replication

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A connection that sent hello and is cut to make room waits for no review: else those that wait are as many as connect.
func TestCutConnectionWaitsForNoReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Leader{reviews: make(chan struct{})} // no review ends
		connect := func() (*unauthenticated, net.Conn) {
			standby, conn := net.Pipe()
			t.Cleanup(func() { _ = standby.Close() })
			return l.addUnauthenticated(conn), standby
		}
		began := time.Now()
		from, standby := connect()
		ended := make(chan error)
		go func() { ended <- l.authenticate(t.Context(), from) }()
		if err := writeHello(standby, hello{Token: "t"}); err != nil {
			t.Fatal(err)
		}
		for range maxUnauthenticated {
			connect()
		}
		if err := <-ended; err == nil || time.Since(began) > 0 {
			t.Errorf("it waited for %v: %v", time.Since(began), err)
		}
	})
}
