package webhook

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// The headers of Standard Webhooks.
const (
	headerID        = "webhook-id"
	headerTimestamp = "webhook-timestamp"
	headerSignature = "webhook-signature"
)

// askFirst is the size from which a request asks (Expect: 100-continue) before it sends its body: a receiver that
// refuses it would close the connection while the body is written, and its answer would be lost. curl does the same.
const askFirst = 1 << 20

// post sends one request and returns its classified error, and whether fewer records in one request may fare better.
func (s *Sink) post(ctx context.Context, records []*sinks.Record) (divide bool, err error) {
	creds, err := s.creds.read()
	if err != nil {
		return false, sinks.Transient(sinks.ReasonUnauthorized, err)
	}
	// The body of the response has a bound of its own, which ends the request and not the call.
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := s.request(own, records, creds)
	if err != nil {
		return true, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return false, s.noAnswer(ctx, err, creds)
	}
	defer resp.Body.Close()
	return s.answer(resp, readBody(ctx, resp, cancel), records, creds)
}

// request makes the request for records, whose body is a copy.
func (s *Sink) request(ctx context.Context, records []*sinks.Record, creds *secrets) (*http.Request, error) {
	first := records[0]
	header := http.Header{}
	if s.array(first) {
		header.Set("Content-Type", first.BatchContentType)
	} else {
		for name, value := range first.Headers {
			if !validName(name) || !validValue(value) {
				return nil, sinks.Permanent(sinks.ReasonEncode, fmt.Errorf("header %q of the record cannot be sent over HTTP", name))
			}
			header.Set(name, value)
		}
		first.AttributeHeaders(header.Set)
		header.Set("Content-Type", first.ContentType)
	}
	id := idOf(records)
	if !validValue(id) {
		return nil, sinks.Permanent(sinks.ReasonEncode, fmt.Errorf("id %q cannot be sent over HTTP", id))
	}
	s.addHeaders(header, creds)
	timestamp := strconv.FormatInt(s.now().Unix(), 10)
	header.Set(headerID, id)
	header.Set(headerTimestamp, timestamp)
	req, err := http.NewRequestWithContext(ctx, s.config.Method, s.target.String(), http.NoBody)
	if err != nil {
		return nil, sinks.Transient(sinks.ReasonOther, errors.New("the request cannot be made from url and method"))
	}
	content := s.content(records)
	if len(creds.signing) > 0 {
		header.Set(headerSignature, sign(creds.signing, id, timestamp, *content))
	}
	if s.config.Compression == compressionGzip {
		header.Set("Content-Encoding", "gzip")
	}
	encoded := s.compressed(content)
	if len(*encoded) >= askFirst {
		header.Set("Expect", "100-continue")
	}
	req.Header = header
	req.ContentLength = int64(len(*encoded))
	req.Body = &body{buffer: encoded}
	req.GetBody = func() (io.ReadCloser, error) { // while the call lasts, so that the records are there
		return &body{buffer: s.compressed(s.content(records))}, nil
	}
	return req, nil
}

// content is what a request carries, in a buffer of its own.
func (s *Sink) content(records []*sinks.Record) *[]byte {
	b := newBuffer()
	if s.array(records[0]) {
		*b = appendArray(*b, records)
	} else {
		*b = append(*b, records[0].Body...)
	}
	return b
}

// compressed returns the content as it travels, and frees it if that is another buffer.
func (s *Sink) compressed(content *[]byte) *[]byte {
	if s.config.Compression != compressionGzip {
		return content
	}
	b := newBuffer()
	*b = compress(*b, *content)
	freeBuffer(content)
	return b
}

// addHeaders sets what every request has, whatever it carries.
func (s *Sink) addHeaders(header http.Header, creds *secrets) {
	header.Set("User-Agent", s.env.UserAgent)
	for name, value := range s.config.Headers {
		header.Set(name, value)
	}
	if creds.authorization != "" {
		header.Set("Authorization", creds.authorization)
	}
}

// idOf returns what receivers deduplicate by: for several records a digest of their ids, so that the same batch has
// the same id each time.
func idOf(records []*sinks.Record) string {
	if len(records) == 1 {
		return records[0].DedupID
	}
	size := 0
	for _, r := range records {
		size += len(r.DedupID) + 8
	}
	ids := make([]byte, 0, size)
	for _, r := range records { // with their lengths, so that no two lists look the same
		ids = append(strconv.AppendInt(ids, int64(len(r.DedupID)), 10), ':')
		ids = append(append(ids, r.DedupID...), ',')
	}
	digest := sha256.Sum256(ids)
	return "batch_" + hex.EncodeToString(digest[:16])
}

// sign returns one signature per secret over id.timestamp.body.
func sign(keys [][]byte, id, timestamp string, body []byte) string {
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " ")
}

// compress appends the content to b, compressed.
func compress(b, content []byte) []byte {
	buffer := bytes.NewBuffer(b)
	w, _ := gzip.NewWriterLevel(buffer, gzip.BestSpeed) // fails for an unknown level only
	_, _ = w.Write(content)                             // a Buffer takes everything
	_ = w.Close()
	return buffer.Bytes()
}

// transport makes the connections: at most one for each call under way, kept as long as they are of use.
func (c *Config) transport(target *url.URL, known *conns) (*http.Transport, error) {
	if err := proxySetting(target.Scheme, os.Getenv); err != nil {
		return nil, err
	}
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
		WriteBufferSize:       256 << 10, // a batch in one call into the kernel, and one copy
		DisableCompression:    true,      // responses are not wanted, least of all inflated
	}
	// The target never changes, and neither does the environment.
	through, err := proxy(&http.Request{URL: target})
	if err == nil && through != nil && through.Scheme == "https" {
		transport.DialTLSContext = c.dialProxy(dial)
	}
	return transport, nil
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

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer]. Path and query of the URL, and the values of configured headers, may be
// credentials; they are not shown.
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	target, fault := parseURL(c.URL)
	if fault != "" {
		return sinks.Destination{Place: "no URL", Err: errors.New("url: " + fault)}
	}
	d := sinks.Destination{Place: c.Method + " " + origin(target)}
	if strings.Trim(target.Path, "/") != "" || target.RawQuery != "" {
		d.Place += "/" + sinks.Undisclosed
	}
	plain := *c
	plain.Compression = compressionNone // the body is to be read
	s := &Sink{config: &plain, target: target, now: func() time.Time { return time.Time{} }}
	// Without the credentials, which are in files.
	req, err := s.request(context.Background(), []*sinks.Record{r}, &secrets{})
	if err != nil {
		d.Err = err
		return d
	}
	if d.Body, err = io.ReadAll(req.Body); err != nil {
		d.Err = err
		return d
	}
	for name := range c.Headers {
		req.Header.Set(name, sinks.Undisclosed)
	}
	req.Header.Set(headerTimestamp, sinks.Undisclosed)
	if c.Auth != nil {
		req.Header.Set("Authorization", sinks.Undisclosed)
	}
	if c.Signature != nil {
		req.Header.Set(headerSignature, sinks.Undisclosed)
	}
	if c.Compression != compressionNone {
		req.Header.Set("Content-Encoding", c.Compression)
	}
	req.Header.Del("User-Agent")
	req.Header.Del("Expect")
	headers := map[string]string{}
	for name := range req.Header {
		headers[strings.ToLower(name)] = req.Header.Get(name)
	}
	d.Headers = sinks.SortedHeaders(headers)
	return d
}

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
