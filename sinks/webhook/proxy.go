package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/kubeferry/kubeferry/sinks"
)

// proxySetting fails if the environment names a proxy for URLs of scheme that is not one. net/http passes over it in
// silence and goes straight to the receiver, with its credentials and past whatever the proxy is there for. That the
// receiver may be excepted by NO_PROXY is no excuse. The error never repeats the text, which may hold a password.
func proxySetting(scheme string, getenv func(string) string) error {
	for _, name := range []string{strings.ToUpper(scheme) + "_PROXY", scheme + "_proxy"} { // in the order of net/http
		text := getenv(name)
		if text == "" {
			continue
		}
		if !strings.Contains(text, "://") { // as net/http has it: a bare host is a proxy that speaks plain HTTP
			text = "http://" + text
		}
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" || !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme) {
			return fmt.Errorf("%s in the environment is not the URL of a proxy: a password in it must be percent-encoded", name)
		}
		return nil
	}
	return nil
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
