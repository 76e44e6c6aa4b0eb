package nats

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
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
		return o, nats.UserCredentials(config.CredsFile)(&o)
	case config.NkeySeedFile != "":
		var login nats.Option
		if login, err = nats.NkeyOptionFromSeed(config.NkeySeedFile); err == nil {
			err = login(&o)
		}
	case config.TokenFile != "":
		o.Token, err = secret(config.TokenFile)
	case config.PasswordFile != "":
		o.User = config.Username
		o.Password, err = secret(config.PasswordFile)
	default:
		o.User, o.Password = config.Username, config.Password
	}
	return o, err
}

func secret(path string) (string, error) {
	content, _, err := sinks.NewSecretFile(path).Read()
	return string(content), err
}

// tlsConfig is that of one connection: nats.go fills in the name of the server.
func tlsConfig(t *sinks.TLS) (*tls.Config, error) {
	roots, err := t.Authorities()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify, //nolint:gosec // the user asked for it, and was warned
	}
	if t.CertFile != "" {
		pair, err := t.ClientCertificate()
		if err != nil {
			return nil, err
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

// stream makes sure of the stream before the first record, and again after one was missing.
type stream struct {
	config  *Stream // nil: the user named none
	subject string
	log     *slog.Logger

	mu    sync.Mutex // guards what follows, and is held while asking the server
	known bool
}

// ensure creates the stream or looks at it. Only a stream that is to be created and cannot be is an error: to
// publish, no right to look is needed.
func (s *stream) ensure(ctx context.Context, js jetstream.JetStream) error {
	if s.config == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	found, err := js.Stream(asking, s.config.Name)
	switch {
	case err == nil:
		s.inspect(&found.CachedInfo().Config)
	case ctx.Err() != nil:
		return ctx.Err()
	case !s.config.Create:
		s.log.Warn("stream cannot be checked", "stream", s.config.Name, "err", err)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if err = s.create(ctx, js); err != nil {
			return transient(fmt.Errorf("create stream %q: %w", s.config.Name, err))
		}
	default:
		return transient(fmt.Errorf("look for stream %q: %w", s.config.Name, err))
	}
	s.known = true
	return nil
}

// forget has the next call look again.
func (s *stream) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = false
}

func (s *stream) create(ctx context.Context, js jetstream.JetStream) error {
	config := s.wanted()
	_, err := js.CreateStream(ctx, config)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil // made by somebody else meanwhile
	}
	if err == nil {
		s.log.Info("created stream", "stream", config.Name, "subjects", strings.Join(config.Subjects, " "))
	}
	return err
}

// wanted is the stream to create. It drops the oldest when it is full, as a log does: a stream that refuses new
// records instead would stop the pipeline for good.
func (s *stream) wanted() jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:        s.config.Name,
		Description: "changes of Kubernetes objects, written by kubeferry",
		Subjects:    s.config.Subjects,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		MaxAge:      s.config.MaxAge,
		MaxBytes:    -1,
		Replicas:    max(s.config.Replicas, 1),
		Duplicates:  s.config.duplicates(),
	}
	if len(config.Subjects) == 0 {
		config.Subjects = []string{pattern(s.subject)}
	}
	if s.config.MaxBytes > 0 {
		config.MaxBytes = int64(s.config.MaxBytes)
	}
	return config
}

// inspect warns of what in an existing stream breaks a promise.
func (s *stream) inspect(found *jetstream.StreamConfig) {
	log := s.log.With("stream", found.Name)
	config := s.config
	if config == nil {
		config = &Stream{}
	}
	if !covered(found.Subjects, s.subject) {
		log.Warn("stream may not take every record", "subjects", strings.Join(found.Subjects, " "), "needed", pattern(s.subject))
	}
	if want := config.duplicates(); found.Duplicates < want {
		log.Warn("stream stores a record twice that is sent again after its duplicate window", "duplicates", found.Duplicates, "wanted", want)
	}
	limited := found.MaxMsgs > 0 || found.MaxMsgsPerSubject > 0 ||
		found.MaxBytes > 0 && found.MaxBytes != int64(config.MaxBytes) ||
		found.MaxAge > 0 && found.MaxAge != config.MaxAge
	if found.Discard == jetstream.DiscardOld && limited {
		log.Warn("stream drops records by limits that are not in this configuration", "maxAge", found.MaxAge,
			"maxBytes", found.MaxBytes, "maxMsgs", found.MaxMsgs, "maxMsgsPerSubject", found.MaxMsgsPerSubject)
	}
}
