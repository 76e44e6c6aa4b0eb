package nats

import (
	"context"
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
			listener.Close() // ends one that did not
			ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
			defer cancel()
			_ = opened.Close(ctx)
		})
	}
}
