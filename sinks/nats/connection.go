package nats

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
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
		return nil, fmt.Errorf("connect to NATS: %w", err)
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
	o.CustomDialer = &dialer{sinks.DialUntil(l.life, connectTimeout)}
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
		o.Token, err = secret("tokenFile", config.TokenFile)
	case config.PasswordFile != "":
		o.User = config.Username
		o.Password, err = secret("passwordFile", config.PasswordFile)
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

func inFile(key, path string, err error) error {
	if err == nil {
		return nil
	}
	return &sinks.FileError{Key: key, Path: path, Err: err}
}

func secret(key, path string) (string, error) {
	content, err := sinks.NewSecretFile(key, path).Read()
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

// dialer is a [nats.CustomDialer].
type dialer struct{ dial sinks.DialFunc }

// Dial implements [nats.CustomDialer].
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	return d.dial(context.Background(), network, address)
}

const (
	headerContentType = "Content-Type"
	// headerDataContentType is what Content-Type is to HTTP: here it is an attribute like the others.
	headerDataContentType = sinks.AttributePrefix + "datacontenttype"
	headerMsgID           = nats.MsgIdHdr // JetStream recognizes a record that is sent again by it
)

// call is one Deliver call. nats.go may be stuck in a write while the call has to return; the goroutine that is in
// it then must not touch the batch any more. So messages are copied out of the batch under a lock, and stop ends it.
type call struct {
	subject sinks.Template
	n       int

	mu    sync.Mutex // guards what follows
	batch []sinks.Record
	buf   []byte
}

// stop makes the call forget its batch. Nothing reads it once it returned.
func (c *call) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batch = nil
}

// message returns the message of record i. Its data is valid until the next call. An error is the record's own,
// unless the call was stopped because ctx has ended.
func (c *call) message(ctx context.Context, i int, maxPayload int64) (*nats.Msg, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.batch == nil {
		return nil, ctx.Err()
	}
	r := &c.batch[i]
	subject := c.subject.Expand(&r.Fields, tokenByte)
	if len(subject) > maxSubject {
		return nil, sinks.Permanent(sinks.ReasonEncode,
			fmt.Errorf("nats: subject %.100q… has %d bytes, more than %d", subject, len(subject), maxSubject))
	}
	header := headerOf(r)
	if size := headerSize(header); int64(size+len(r.Body)) > maxPayload {
		return nil, sinks.Permanent(sinks.ReasonTooLarge,
			fmt.Errorf("nats: subject %q: a record of %d bytes (headers %d, value %d) is larger than the server's max_payload of %d",
				subject, size+len(r.Body), size, len(r.Body), maxPayload))
	}
	c.buf = append(c.buf[:0], r.Body...)
	return &nats.Msg{Subject: subject, Header: header, Data: c.buf}, nil
}

func headerOf(r *sinks.Record) nats.Header {
	n := len(r.Headers) + len(r.Attributes) + 3
	header := make(nats.Header, n)
	values := make([]string, 0, n) // one allocation instead of n
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for name, value := range r.Headers {
		if name != "content-type" || r.ContentType == "" { // names of headers are case-sensitive here
			set(name, value)
		}
	}
	if r.ContentType != "" {
		set(headerContentType, r.ContentType)
	}
	r.AttributeHeaders(set)
	if r.Attributes != nil && r.ContentType != "" {
		set(headerDataContentType, r.ContentType)
	}
	set(headerMsgID, r.DedupID)
	return header
}

// headerSize returns the bytes of a header section (ADR-4): a version line, "name: value" lines, an empty line.
func headerSize(header nats.Header) int {
	size := len("NATS/1.0\r\n") + len("\r\n")
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return size
}

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer]. What the server takes at most is not known here.
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	template, err := sinks.ParseTemplate(c.Subject)
	if err != nil {
		return sinks.Destination{Place: "subject " + c.Subject, Err: err}
	}
	one := &call{subject: template, batch: []sinks.Record{*r}}
	message, err := one.message(context.Background(), 0, math.MaxInt64)
	if err != nil {
		return sinks.Destination{Place: "no subject", Err: err}
	}
	headers := map[string]string{}
	for name := range message.Header {
		headers[name] = message.Header.Get(name)
	}
	return sinks.Destination{Place: "subject " + message.Subject, Headers: sinks.SortedHeaders(headers), Body: message.Data}
}
