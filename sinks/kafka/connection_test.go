package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// TestAnswerOfAnotherProtocol: kafka-go would make room for 800 million items for the answer of a web server.
func TestAnswerOfAnotherProtocol(t *testing.T) {
	for name, answer := range map[string]string{
		"HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "NATS": `INFO {"server_id":"NABC"}`, "TLS": "\x15\x03\x03\x00\x02\x02\x46",
		"gRPC": "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00",
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						_, _ = conn.Read(make([]byte, 1024))
						_, _ = io.WriteString(conn, answer)
					}()
				}
			}()
			config := NewConfig()
			config.Brokers, config.Topic = []string{listener.Addr().String()}, "t"
			sink, err := config.Open(t.Context(), sinks.Env{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer sink.Close(context.Background())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err = sink.(sinks.Checker).Check(ctx)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), "not that of a Kafka broker") && !strings.Contains(err.Error(), "expecting TLS") {
				t.Errorf("got error %v", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
				t.Errorf("%d MiB were allocated", took>>20)
			}
		})
	}
}

type readConn struct {
	net.Conn
	io.Reader
}

func (c readConn) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// Responses are passed on however they are cut into reads.
func TestResponsesAreRead(t *testing.T) {
	sent := []byte{0, 0, 0, 6, 0, 0, 0, 1, 0xff, 0xff}
	for _, size := range []int{0, 1, 3, 4, 5, 1000} {
		sent = binary.BigEndian.AppendUint32(sent, uint32(size)) //nolint:gosec // small
		sent = append(sent, bytes.Repeat([]byte{0xff}, size)...)
	}
	for name, reader := range map[string]io.Reader{
		"at once": bytes.NewReader(sent), "byte by byte": iotest.OneByteReader(bytes.NewReader(sent)), "in halves": iotest.HalfReader(bytes.NewReader(sent)),
	} {
		got, err := io.ReadAll(&conn{Conn: readConn{Reader: reader}})
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: got %d bytes, %v, want %d", name, len(got), err, len(sent))
		}
	}
}
