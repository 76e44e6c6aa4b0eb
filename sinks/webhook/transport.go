package webhook

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// transport makes the connections: at most one for each call under way, kept as long as they are of use, and closed when
// life ends. Without a tls section it has no TLS configuration, so that net/http takes each connection's own name: a
// proxy that speaks TLS has another one than the receiver.
func (c *Config) transport(life context.Context, target *url.URL) (*http.Transport, error) {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		// A dial goes on when its request is given up, and counts as a connection until it ends.
		DialContext:         sinks.DialUntil(life, c.Timeout),
		TLSHandshakeTimeout: c.Timeout,
		ForceAttemptHTTP2:   true,
		// Without pings, a connection whose other end vanished would be used until the kernel gives it up.
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
		MaxConnsPerHost:       c.Concurrency,
		MaxIdleConns:          c.Concurrency,
		MaxIdleConnsPerHost:   c.Concurrency,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		WriteBufferSize:       256 << 10, // a batch in one call into the kernel, and one copy
		DisableCompression:    true,      // responses are not wanted, least of all inflated
	}
	if c.TLS == nil {
		return transport, nil
	}
	if err := c.TLS.CheckFiles(); err != nil {
		return nil, err
	}
	var err error
	transport.TLSClientConfig, err = c.TLS.Config(target.Hostname())
	return transport, err
}
