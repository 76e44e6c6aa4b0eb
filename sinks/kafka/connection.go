package kafka

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	// metadataTTL bounds the age of the metadata. kafka-go reads it again after half of this time on average. A metadata request may take
	// no longer than this either.
	metadataTTL = 10 * time.Second
	// dialTimeout bounds the attempt on one address; kafka-go tries one broker after the other.
	dialTimeout = 3 * time.Second
	// quiet is the deadline of connections without a request; see conn.
	quiet = 20 * time.Second
)

// openTransport returns a transport whose connections end with ctx, and which reads the metadata of topics: of all if that is nil.
func openTransport(ctx context.Context, config *Config, clientID string, login sasl.Mechanism, topics []string) *kafka.Transport {
	transport := &kafka.Transport{
		Dial:           dialer(ctx, config.TLS),
		DialTimeout:    3 * dialTimeout,
		MetadataTTL:    metadataTTL,
		MetadataTopics: topics,
		ClientID:       clientName(clientID),
		Context:        ctx,
	}
	if login != nil {
		transport.SASL = login
	}
	return transport
}

// clientName makes a client id of a user agent: Kafka makes names of metrics and quotas of it.
func clientName(userAgent string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && topicByte(byte(r)) {
			return r
		}
		return '-'
	}, userAgent)
}

// dialer returns a function that connects to a broker, and does TLS itself: kafka.Transport takes one configuration for
// all brokers and for ever, and ours follows rotated files. The connections are closed when life ends.
func dialer(life context.Context, tlsConfig *sinks.TLS) sinks.DialFunc {
	dial := sinks.DialUntil(life, dialTimeout)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if tlsConfig == nil {
			return &conn{Conn: raw}, nil
		}
		secured, err := handshake(ctx, raw, tlsConfig, address)
		if err != nil {
			_ = raw.Close()
			return nil, fmt.Errorf("tls with %s: %w", address, err)
		}
		return &conn{Conn: secured}, nil
	}
}

func handshake(ctx context.Context, raw net.Conn, tlsConfig *sinks.TLS, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config, err := tlsConfig.Config(host)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(raw, config)
	return secured, secured.HandshakeContext(ctx)
}

// maxResponse bounds the first response, as brokers bound a request (socket.request.max.bytes).
const maxResponse = 100 << 20

// conn is a connection that is never without a deadline. kafka-go removes the deadline before it logs in by SASL (connGroup.connect in
// transport.go), so a broker that went silent there would keep a goroutine for ever. Between requests nothing reads or writes, so a deadline
// that passes then does no harm: each request sets its own.
//
// It also checks how the first response begins. kafka-go makes room for as many items as a response announces, so an answer in another
// protocol would take gigabytes.
type conn struct {
	net.Conn
	head []byte // the first firstBytes that were read
}

// firstBytes of a connection are the size of the first response, and its correlation id. That is the id of the first request, 1.
const firstBytes = 8

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if len(c.head) == firstBytes {
		return n, err
	}
	c.head = append(c.head, b[:min(n, firstBytes-len(c.head))]...)
	if len(c.head) == firstBytes && (binary.BigEndian.Uint32(c.head) > maxResponse || binary.BigEndian.Uint32(c.head[4:]) != 1) {
		return 0, fmt.Errorf("the answer (% x…) is not that of a Kafka broker", c.head)
	}
	return n, err
}

// SetDeadline implements [net.Conn].
func (c *conn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		t = time.Now().Add(quiet)
	}
	return c.Conn.SetDeadline(t)
}

// loginOf returns the SASL mechanism, nil without a login. life ends the connections to a token server.
func loginOf(life context.Context, config *SASL) sasl.Mechanism {
	switch {
	case config == nil:
		return nil
	case config.token():
		return bearerOf(life, config)
	default:
		return mechanism{config}
	}
}

// mechanism is a SASL mechanism that reads the password for each connection.
type mechanism struct{ config *SASL }

// Name implements [sasl.Mechanism].
func (m mechanism) Name() string {
	if algorithm, ok := scramAlgorithms[m.config.Mechanism]; ok {
		return algorithm.Name()
	}
	return plain.Mechanism{}.Name()
}

// Start implements [sasl.Mechanism].
func (m mechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	password, err := sinks.ReadSecret("sasl.passwordFile", m.config.PasswordFile, m.config.Password)
	if err != nil {
		return nil, nil, err
	}
	algorithm, ok := scramAlgorithms[m.config.Mechanism]
	if !ok {
		return plain.Mechanism{Username: m.config.Username, Password: password}.Start(ctx)
	}
	inner, err := scram.Mechanism(algorithm, m.config.Username, password)
	if err != nil {
		// SASLprep refuses the name or the password. Its text may quote it.
		return nil, nil, sinks.Transient(sinks.ReasonUnauthorized, fmt.Errorf("%s cannot be used with this username or password", m.config.Mechanism))
	}
	return inner.Start(ctx)
}
