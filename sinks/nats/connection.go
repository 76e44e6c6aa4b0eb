package nats

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
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
	down     chan struct{}       // closed once the connection is lost
	refusals *refusals
}

// lost returns the error of a connection that is down.
func (l *link) lost() error {
	err := l.conn.LastError()
	if err == nil {
		err = nats.ErrConnectionClosed
	}
	reason := reasonOf(err)
	if reason != sinks.ReasonUnauthorized && reason != sinks.ReasonUnavailable {
		reason = sinks.ReasonUnreachable
	}
	return sinks.Transient(reason, fmt.Errorf("the connection to NATS was lost: %w", err))
}

// links makes connections when they are needed, one at a time.
type links struct {
	config *Config
	name   string
	log    *slog.Logger
	life   context.Context // ends every connection
	end    context.CancelFunc

	attempts sync.WaitGroup
	mu       sync.Mutex // guards what follows
	current  *link
	attempt  *attempt // under way
	closed   bool
}

// attempt is one attempt to connect. link and err are set before done is closed.
type attempt struct {
	done chan struct{}
	link *link
	err  error
}

func newLinks(config *Config, env sinks.Env) *links {
	life, end := context.WithCancel(context.Background())
	return &links{config: config, name: env.UserAgent + " " + env.Name, log: env.Logger, life: life, end: end}
}

// get returns the connection, after making one if there is none.
func (l *links) get(ctx context.Context) (*link, error) {
	link, attempt := l.currentOrAttempt()
	if link != nil {
		return link, nil
	}
	select {
	case <-attempt.done:
		return attempt.link, attempt.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *links) currentOrAttempt() (*link, *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil && !l.current.conn.IsClosed() {
		return l.current, nil
	}
	if l.attempt == nil {
		a := &attempt{done: make(chan struct{})}
		if l.attempt = a; l.closed {
			a.err = nats.ErrConnectionClosed
			close(a.done)
		} else {
			l.attempts.Go(func() { l.run(a) })
		}
	}
	return nil, l.attempt
}

func (l *links) run(a *attempt) {
	a.link, a.err = l.connect()
	l.mu.Lock()
	if a.err == nil && l.closed {
		a.link.conn.Close()
		a.link, a.err = nil, nats.ErrConnectionClosed
	}
	if a.err == nil {
		l.current = a.link
	}
	l.attempt = nil
	l.mu.Unlock()
	close(a.done)
}

// connect tries each server once.
func (l *links) connect() (*link, error) {
	options, err := l.options()
	if err != nil {
		return nil, sinks.Transient(sinks.ReasonUnauthorized, fmt.Errorf("connect to NATS: %w", err))
	}
	link := &link{down: make(chan struct{}), refusals: newRefusals()}
	options.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) {
		// A violation is the error of a record, which is returned; it comes again with each attempt.
		level := slog.LevelWarn
		if errors.Is(err, nats.ErrPermissionViolation) {
			level = slog.LevelDebug
		}
		l.log.Log(l.life, level, "NATS reports an error", "err", err)
		link.refusals.report(err)
	}
	down := sync.OnceFunc(func() { close(link.down) })
	options.ClosedCB = func(conn *nats.Conn) {
		down()
		if l.life.Err() == nil {
			l.log.Warn("connection to NATS lost", "err", conn.LastError())
		}
	}
	if link.conn, err = options.Connect(); err != nil {
		return nil, connectError(err)
	}
	if l.config.JetStream {
		// As many as all calls together have on their way, and as many again of calls that gave up waiting.
		pending := 2 * l.config.Concurrency * l.config.Batch.MaxRecords
		link.js, err = jetstream.New(link.conn,
			jetstream.WithPublishAsyncMaxPending(pending), jetstream.WithPublishAsyncTimeout(l.config.Timeout))
		if err != nil {
			link.conn.Close()
			return nil, fmt.Errorf("use JetStream: %w", err)
		}
	}
	l.log.Info("connected to NATS", "server", link.conn.ConnectedAddr())
	return link, nil
}

// connectError classifies the failure of an attempt: what is not about credentials counts as unreachable.
func connectError(err error) error {
	var parse *url.Error
	if errors.As(err, &parse) { // quotes the URL, which may hold a password
		err = errors.New("a URL in urls cannot be used")
	}
	reason := reasonOf(err)
	if reason != sinks.ReasonUnauthorized && reason != sinks.ReasonUnavailable {
		reason = sinks.ReasonUnreachable
	}
	return sinks.Transient(reason, fmt.Errorf("connect to NATS: %w", err))
}

// options reads the files that the configuration names, so that each connection has their present content.
func (l *links) options() (nats.Options, error) {
	config := l.config
	o := nats.GetDefaultOptions()
	o.Servers = config.URLs
	o.Name = l.name
	o.AllowReconnect = false
	o.NoEcho = true
	o.Timeout = connectTimeout
	o.CustomDialer = &dialer{life: l.life}
	o.FlusherTimeout = config.Timeout // a write that takes longer breaks the connection
	o.PingInterval, o.MaxPingsOut = pingInterval, maxPingsOut
	o.NoCallbacksAfterClientClose = true

	var err error
	if config.TLS != nil {
		o.Secure = true
		if o.TLSConfig, err = tlsConfig(config.TLS); err != nil {
			return o, err
		}
	}
	switch {
	case config.CredsFile != "":
		err = inFile("credsFile", config.CredsFile, credentials(&o, config.CredsFile))
	case config.NkeySeedFile != "":
		var login nats.Option
		if login, err = nats.NkeyOptionFromSeed(config.NkeySeedFile); err == nil {
			err = login(&o)
		}
		err = inFile("nkeySeedFile", config.NkeySeedFile, err)
	case config.TokenFile != "":
		o.Token, err = secret(config.TokenFile)
		err = inFile("tokenFile", config.TokenFile, err)
	case config.PasswordFile != "":
		o.User = config.Username
		o.Password, err = secret(config.PasswordFile)
		err = inFile("passwordFile", config.PasswordFile, err)
	default:
		o.User, o.Password = config.Username, config.Password
	}
	return o, err
}

// credentials tries the file out: nats.go reads it only while it logs in, and what is wrong with it then looks like a
// failure of the connection.
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

// fileError is that a file named in the configuration cannot be used: no server is to blame.
type fileError struct{ err error }

func (e *fileError) Error() string { return e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// inFile says which file err is about, and the key that names it.
func inFile(key, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fileError{fmt.Errorf("%s %s cannot be used: %w", key, path, err)}
}

func secret(path string) (string, error) {
	content, _, err := sinks.NewSecretFile(path).Read()
	return string(content), err
}

// tlsConfig is that of one connection: nats.go fills in the name of the server.
func tlsConfig(t *sinks.TLS) (*tls.Config, error) {
	roots, err := t.Authorities()
	if err != nil {
		return nil, inFile("tls.caFile", t.CAFile, err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify, //nolint:gosec // the user asked for it, and was warned
	}
	if t.CertFile != "" {
		pair, err := t.ClientCertificate()
		if err != nil {
			return nil, inFile("tls.certFile", t.CertFile+" with tls.keyFile "+t.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{*pair}
	}
	return config, nil
}

// close ends the connection. A Close of nats.go waits for a write that is stuck; when ctx ends first, the socket is
// closed under it.
func (l *links) close(ctx context.Context) {
	l.mu.Lock()
	l.closed = true
	link, attempt := l.current, l.attempt
	l.mu.Unlock()
	if attempt != nil {
		l.end() // nobody wants it any more
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		if link != nil {
			link.conn.Close()
		}
		l.attempts.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	l.end()
}

// dialer makes connections that end with life.
type dialer struct{ life context.Context }

// Dial implements [nats.CustomDialer].
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	raw, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(d.life, network, address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: raw, release: context.AfterFunc(d.life, func() { _ = raw.Close() })}, nil
}

type conn struct {
	net.Conn
	release func() bool
}

func (c *conn) Close() error {
	c.release()
	return c.Conn.Close()
}
