package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// transport makes the connections: at most one for each call under way, kept as long as they are of use.
func (c *Config) transport(target *url.URL, known *conns) (*http.Transport, error) {
	tlsConfig, err := c.TLS.Config(target.Hostname())
	if err != nil {
		return nil, err
	}
	if c.TLS != nil {
		if _, err := c.TLS.Authorities(); err != nil {
			return nil, err
		}
		if c.TLS.CertFile != "" {
			if _, err := c.TLS.ClientCertificate(); err != nil {
				return nil, err
			}
		}
	}
	// A dial goes on when its request is given up, and counts as a connection until it ends.
	dial := known.watch((&net.Dialer{Timeout: c.Timeout, KeepAlive: 30 * time.Second}).DialContext)
	transport := &http.Transport{
		Proxy:                  proxy,
		OnProxyConnectResponse: proxyAnswer,
		DialContext:            dial,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    c.Timeout,
		ForceAttemptHTTP2:      true,
		// Without pings, a connection whose other end vanished would be used until the kernel gives it up.
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
		MaxConnsPerHost:       c.Concurrency,
		MaxIdleConns:          c.Concurrency,
		MaxIdleConnsPerHost:   c.Concurrency,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		WriteBufferSize:       64 << 10, // fewer calls into the kernel for a batch
		DisableCompression:    true,     // responses are not wanted, least of all inflated
	}
	// The target never changes, and neither does the environment.
	through, err := proxy(&http.Request{URL: target})
	if err == nil && through != nil && through.Scheme == "https" {
		transport.DialTLSContext = c.dialProxy(dial)
	}
	return transport, nil
}

// dialProxy connects to a proxy that speaks TLS itself. net/http would use the target's TLS configuration for it, with
// its name, authorities and client certificate. It uses this for the proxy only, as every request goes through it.
func (c *Config) dialProxy(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		config, err := c.TLS.ProxyConfig(host)
		if err != nil {
			return nil, err
		}
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		conn := tls.Client(raw, config)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return conn, nil
	}
}

// proxy hides the text of a proxy URL that cannot be parsed, because it may hold a password.
func proxy(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errors.New("the proxy that the environment names is not a valid URL")
	}
	return u, nil
}

// proxyAnswer says what a proxy thinks of being asked for a connection.
func proxyAnswer(_ context.Context, proxy *url.URL, _ *http.Request, answer *http.Response) error {
	switch {
	case answer.StatusCode == http.StatusOK:
		return nil
	case answer.StatusCode == http.StatusProxyAuthRequired || answer.StatusCode == http.StatusForbidden:
		return sinks.Transient(sinks.ReasonUnauthorized, proxyError(proxy, answer))
	default:
		return sinks.Transient(sinks.ReasonUnreachable, proxyError(proxy, answer))
	}
}

func proxyError(proxy *url.URL, answer *http.Response) error {
	return fmt.Errorf("the proxy %s answered %d %s", origin(proxy), answer.StatusCode, http.StatusText(answer.StatusCode))
}

// conns knows the connections there are, so that Close can end them: net/http closes those it takes for idle, and a
// connection of HTTP/2 is not idle yet for a moment after its last response.
type conns struct {
	mu   sync.Mutex // guards open
	open map[net.Conn]struct{}
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// watch returns dial, with its connections known.
func (c *conns) watch(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn := &watched{Conn: raw, conns: c}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open == nil {
			c.open = map[net.Conn]struct{}{}
		}
		c.open[raw] = struct{}{}
		return conn, nil
	}
}

func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for raw := range c.open {
		_ = raw.Close()
	}
	c.open = nil
}

type watched struct {
	net.Conn
	conns *conns
}

func (w *watched) Close() error {
	w.conns.mu.Lock()
	delete(w.conns.open, w.Conn)
	w.conns.mu.Unlock()
	return w.Conn.Close()
}
