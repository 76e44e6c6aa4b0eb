package nats

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// TestServerThatNeverAnswers: an attempt on a server that accepts a connection and stays silent ends, also within TLS in front of WebSocket.
func TestServerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"nats", "tls", "ws", "wss"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				if conn, err := listener.Accept(); err == nil {
					defer conn.Close()
					_, _ = io.Copy(io.Discard, conn)
				}
			}()
			config := NewConfig()
			config.URLs = []string{scheme + "://" + listener.Addr().String()}
			opened, err := config.Open(t.Context(), sinks.Env{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := opened.(*Sink).connection()
				ended <- err
			}()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("it is connected")
				}
			case <-time.After(10 * connectTimeout):
				t.Error("the attempt does not end")
			}
			select {
			case <-closed:
			case <-time.After(10 * connectTimeout):
				t.Error("its connection is left open")
			}
			ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
			defer cancel()
			_ = opened.Close(ctx)
		})
	}
}
