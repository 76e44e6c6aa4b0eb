// Package natstest runs real NATS servers with JetStream: one inside the test process ([Start]), or one or several as
// processes of their own that can be killed ([StartCluster]). It reads what they store with nats.go and with the nats
// command ([CLI]).
package natstest

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
)

// Server is a NATS server on loopback. Its methods fail the test instead of returning errors, so they belong on the
// test's own goroutine.
type Server struct {
	access
	options server.Options
	server  *server.Server
}

// Start runs a server that ends with the test. configure, if not nil, changes the server's options first: users,
// tokens, TLS, MaxPayload.
func Start(tb testing.TB, configure func(*server.Options)) *Server {
	tb.Helper()
	s := &Server{access: access{tb: tb}, options: server.Options{
		Host:      "127.0.0.1",
		JetStream: true,
		StoreDir:  tb.TempDir(),
		NoSigs:    true,
		NoLog:     true,
		// The default of 2 s is not always enough on a busy machine: the server then breaks the connection.
		AuthTimeout: 60,
	}}
	if configure != nil {
		configure(&s.options)
	}
	s.logIn()
	tb.Cleanup(s.Stop)
	for attempt := 1; ; attempt++ {
		var err error
		if s.options.Port, err = freeport.Pick(); err != nil {
			tb.Fatal(err)
		}
		s.urls = "nats://" + freeport.Addr(s.options.Port)
		if err = s.start(); err == nil {
			return s
		}
		if attempt == 3 {
			tb.Fatalf("start NATS server: %v", err)
		}
	}
}

// URL is where clients connect. It stays the same after a restart.
func (s *Server) URL() string { return s.urls }

// Reconfigure changes the options and restarts the server.
func (s *Server) Reconfigure(configure func(*server.Options)) {
	s.tb.Helper()
	configure(&s.options)
	s.logIn()
	s.Restart()
}

// Reload changes the options of the running server, as a signal to it does; connections stay.
func (s *Server) Reload(configure func(*server.Options)) {
	s.tb.Helper()
	configure(&s.options)
	if err := s.server.ReloadOptions(s.options.Clone()); err != nil {
		s.tb.Fatalf("reload NATS server: %v", err)
	}
}

func (s *Server) logIn() {
	s.login = nil
	if s.options.Username != "" {
		s.login = append(s.login, nats.UserInfo(s.options.Username, s.options.Password))
	}
	if s.options.Authorization != "" {
		s.login = append(s.login, nats.Token(s.options.Authorization))
	}
}

// Login sets how the methods below log in, for a server whose options hold neither a name nor a token.
func (s *Server) Login(options ...nats.Option) { s.login = options }

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
