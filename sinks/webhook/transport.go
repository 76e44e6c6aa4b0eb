package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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
		DisableCompression:    true, // responses are not wanted, least of all inflated
	}
	if c.TLS == nil {
		return transport, nil
	}
	var err error
	transport.TLSClientConfig, err = rotating(c.TLS, target.Hostname())
	return transport, err
}

// rotating returns a configuration that reads the files again at each handshake: http.Transport takes one for all its
// connections.
func rotating(files *sinks.TLS, host string) (*tls.Config, error) {
	config, err := files.Config(host)
	if err != nil {
		return nil, err
	}
	if config.Certificates != nil {
		config.Certificates = nil
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			present, err := files.Config(host)
			if err != nil {
				return nil, err
			}
			return &present.Certificates[0], nil
		}
	}
	if config.RootCAs != nil {
		// In place of crypto/tls, as the documentation of tls.Config.VerifyConnection shows.
		config.InsecureSkipVerify = true //nolint:gosec // VerifyConnection verifies
		config.VerifyConnection = func(state tls.ConnectionState) error {
			present, err := files.Config(host)
			if err != nil {
				return err
			}
			return verify(state.PeerCertificates, present)
		}
	}
	return config, nil
}

// verify verifies a chain as crypto/tls does. The name is that of config, since tls.ConnectionState has none for an address.
func verify(chain []*x509.Certificate, config *tls.Config) error {
	options := x509.VerifyOptions{Roots: config.RootCAs, Intermediates: x509.NewCertPool()}
	for _, certificate := range chain[1:] {
		options.Intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(options)
	if err == nil {
		err = chain[0].VerifyHostname(config.ServerName) // for which, unlike for Verify, "" is no name
	}
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	return nil
}
