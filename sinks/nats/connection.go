package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	// connectTimeout bounds the attempt on one server.
	connectTimeout = 2 * time.Second
	// A connection that does not answer pings is given up after two to three of them.
	pingInterval = 10 * time.Second
	maxPingsOut  = 2
)

// link is one connection. It is never revived.
type link struct {
	conn     *nats.Conn
	js       jetstream.JetStream // nil for core NATS
	down     chan struct{}       // closed once the connection is lost and its last callback has returned
	refusals *refusals
}

// connection returns the connection, and makes one if there is none. That ends with the attempts on each server, or with
// the sink.
func (s *Sink) connection() (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil && !s.link.conn.IsClosed() {
		return s.link, nil
	}
	link, err := s.connect()
	if err == nil {
		s.link = link
	}
	return link, err
}

// connect tries each server once.
func (s *Sink) connect() (*link, error) {
	options, err := s.options()
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	link := &link{down: make(chan struct{}), refusals: newRefusals()}
	options.AsyncErrorCB = func(conn *nats.Conn, _ *nats.Subscription, err error) {
		// A violation is the error of a record, which is returned; it comes again with each attempt.
		level := slog.LevelWarn
		if errors.Is(err, nats.ErrPermissionViolation) {
			level = slog.LevelDebug
		}
		s.log.Log(s.life, level, "NATS reports an error", "err", err)
		if !link.refusals.report(err) {
			conn.Close()
		}
	}
	options.ClosedCB = func(conn *nats.Conn) {
		if s.life.Err() == nil {
			s.log.Warn("connection to NATS lost", "err", conn.LastError())
		}
		close(link.down)
	}
	if link.conn, err = options.Connect(); err != nil {
		options.CustomDialer.(*dialer).close()
		return nil, connectionError("connect to NATS", err)
	}
	s.running.Go(func() { <-link.down })
	if s.config.JetStream {
		// As many as all calls together have on their way, and as many again of calls that gave up waiting.
		pending := 2 * s.config.Concurrency * s.config.Batch.MaxRecords
		link.js, err = s.config.jetStream(link.conn, jetstream.WithPublishAsyncMaxPending(pending), jetstream.WithPublishAsyncTimeout(s.config.Timeout))
		if err != nil {
			link.conn.Close()
			return nil, fmt.Errorf("use JetStream: %w", err)
		}
	}
	s.log.Info("connected to NATS", "server", link.conn.ConnectedAddr())
	return link, nil
}

// jetStream returns the API of the domain.
func (c *Config) jetStream(conn *nats.Conn, options ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
	if c.Domain != "" {
		return jetstream.NewWithDomain(conn, c.Domain, options...)
	}
	return jetstream.New(conn, options...)
}

// options reads the files that the configuration names, so that each connection has their present content.
func (s *Sink) options() (nats.Options, error) {
	o := nats.GetDefaultOptions()
	o.Servers = s.config.URLs
	o.Name = s.name
	o.AllowReconnect = false
	o.NoEcho = true
	o.Timeout = connectTimeout
	o.CustomDialer = &dialer{dial: sinks.DialUntil(s.life, connectTimeout)}
	o.FlusherTimeout = s.config.Timeout // a write that takes longer breaks the connection
	o.InboxPrefix, o.TLSHandshakeFirst = s.config.InboxPrefix, s.config.TLSFirst
	o.Secure = s.config.TLSFirst // with a URL that begins with tls://, too
	o.PingInterval, o.MaxPingsOut = pingInterval, maxPingsOut

	if s.config.TLS != nil {
		var err error
		o.Secure = true
		if o.TLSConfig, err = s.config.TLS.Config(""); err != nil { // nats.go fills in the name of the server
			return o, err
		}
	}
	return o, s.config.logIn(&o)
}

// logIn sets the credentials.
func (c *Config) logIn(o *nats.Options) error {
	var err error
	switch {
	case c.CredsFile != "":
		if err = credentials(o, c.CredsFile); err != nil {
			err = &sinks.FileError{Key: "credsFile", Path: c.CredsFile, Err: err}
		}
	case c.NkeySeedFile != "":
		nkey, seedErr := nats.NkeyOptionFromSeed(c.NkeySeedFile)
		if seedErr != nil {
			return &sinks.FileError{Key: "nkeySeedFile", Path: c.NkeySeedFile, Err: seedErr}
		}
		return nkey(o)
	case c.TokenFile != "":
		o.Token, err = sinks.ReadSecret("tokenFile", c.TokenFile, "")
	default:
		o.User = c.Username
		o.Password, err = sinks.ReadSecret("passwordFile", c.PasswordFile, c.Password)
	}
	return err
}

// credentials checks the file: nats.go reads it only at login, where a fault in it looks like a connection error.
func credentials(o *nats.Options, path string) error {
	if err := nats.UserCredentials(path)(o); err != nil {
		return err
	}
	if _, err := o.UserJWT(); err != nil {
		return err
	}
	_, err := o.SignatureCB([]byte("nonce"))
	return err
}

// dialer is a [nats.CustomDialer] of one Connect, which tries one server after the other.
type dialer struct {
	dial sinks.DialFunc
	last net.Conn
}

// Dial implements [nats.CustomDialer]. The connection has a deadline from the start: nats.go sets one only behind the TLS handshake of
// wss:// (ws.go), which a server that does not answer would never end.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	d.close()
	conn, err := d.dial(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	d.last = conn
	return conn, conn.SetDeadline(time.Now().Add(connectTimeout))
}

// close closes the connection of an attempt that failed: nats.go leaves it open if it was the handshake of a WebSocket.
func (d *dialer) close() {
	if d.last != nil {
		_ = d.last.Close()
	}
}
