// Package natstest runs a real NATS server with JetStream inside the test process.
package natstest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
)

// Server is a NATS server on loopback. Its methods fail the test instead of returning errors, so they belong on the
// test's own goroutine.
type Server struct {
	tb      testing.TB
	options server.Options
	server  *server.Server
}

// Start runs a server that ends with the test. configure, if not nil, changes the server's options first: users,
// tokens, TLS, MaxPayload.
func Start(tb testing.TB, configure func(*server.Options)) *Server {
	tb.Helper()
	s := &Server{tb: tb, options: server.Options{
		Host:      "127.0.0.1",
		JetStream: true,
		StoreDir:  tb.TempDir(),
		NoSigs:    true,
		NoLog:     true,
	}}
	if configure != nil {
		configure(&s.options)
	}
	tb.Cleanup(s.Stop)
	for attempt := 1; ; attempt++ {
		var err error
		if s.options.Port, err = freeport.Pick(); err != nil {
			tb.Fatal(err)
		}
		if err = s.start(); err == nil {
			return s
		}
		if attempt == 3 {
			tb.Fatalf("start NATS server: %v", err)
		}
	}
}

// URL is where clients connect. It stays the same after a restart.
func (s *Server) URL() string {
	return "nats://" + freeport.Addr(s.options.Port)
}

// Stop ends the server and breaks its connections; streams with file storage are there again after [Server.Restart].
func (s *Server) Stop() {
	if s.server != nil {
		s.server.Shutdown()
		s.server.WaitForShutdown()
		s.server = nil
	}
}

// Restart stops the server if it runs and starts it on the same port with the same data.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	if err := s.start(); err != nil {
		s.tb.Fatalf("restart NATS server: %v", err)
	}
}

func (s *Server) start() error {
	srv, err := server.NewServer(s.options.Clone()) // the server writes into what it is given
	if err != nil {
		return err
	}
	s.server = srv
	srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		s.Stop()
		return fmt.Errorf("%s does not accept connections", s.URL())
	}
	return nil
}

// CreateStream creates a JetStream stream with file storage and the server's defaults for the rest.
func (s *Server) CreateStream(ctx context.Context, name string, subjects ...string) {
	s.tb.Helper()
	s.CreateStreamWith(ctx, jetstream.StreamConfig{Name: name, Subjects: subjects})
}

// CreateStreamWith creates a JetStream stream.
func (s *Server) CreateStreamWith(ctx context.Context, config jetstream.StreamConfig) {
	s.tb.Helper()
	conn, js := s.connect()
	defer conn.Close()
	if _, err := js.CreateStream(ctx, config); err != nil {
		s.tb.Fatalf("create stream %q: %v", config.Name, err)
	}
}

func (s *Server) connect() (*nats.Conn, jetstream.JetStream) {
	s.tb.Helper()
	var auth []nats.Option
	if s.options.Username != "" {
		auth = append(auth, nats.UserInfo(s.options.Username, s.options.Password))
	}
	if s.options.Authorization != "" {
		auth = append(auth, nats.Token(s.options.Authorization))
	}
	conn, err := nats.Connect(s.URL(), auth...)
	if err != nil {
		s.tb.Fatalf("connect to NATS: %v", err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		s.tb.Fatalf("JetStream: %v", err)
	}
	return conn, js
}
