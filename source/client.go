package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// answerTimeout is how long to wait for an answer, of a watch for its beginning. The API server's own limit is a minute;
// a proxy before it may have none, and without a limit a connection that hangs would block a watch until the end.
const answerTimeout = 90 * time.Second

var errNoAnswer = errors.New("the API server did not answer in time")

// Client sends requests to one API server. It has no client-side rate limit: with a shared one, the list that closes a gap would
// wait behind discovery requests, and the API server limits its clients itself.
type Client struct {
	rest     rest.Interface
	apart    rest.Interface // opens a connection for each request
	timeout  time.Duration  // see answerTimeout, and so on
	bookmark time.Duration
	// keepManagedFields leaves metadata.managedFields in the objects.
	keepManagedFields bool
	clock             *clock
}

// clock is that of the API server, as its last answer shows it.
type clock struct{ ahead atomic.Int64 }

// Now returns the time of the API server, so that replicas whose clocks differ agree. Before the first answer it returns the time of this
// machine.
func (c *Client) Now() time.Time { return time.Now().Add(time.Duration(c.clock.ahead.Load())) }

// clockReader reads the time in answers.
type clockReader struct {
	http.RoundTripper
	clock *clock
}

// WrappedRoundTripper is how client-go finds the transport.
func (r clockReader) WrappedRoundTripper() http.RoundTripper { return r.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (r clockReader) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.RoundTripper.RoundTrip(request)
	if err == nil {
		if date, failed := http.ParseTime(response.Header.Get("Date")); failed == nil {
			r.clock.ahead.Store(int64(time.Until(date)))
		}
	}
	return response, err
}

// NewClient makes a client. If keepManagedFields is not set, the client removes metadata.managedFields while it reads, which is cheapest.
func NewClient(config *rest.Config, keepManagedFields bool) (*Client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	// As Kubernetes' own controllers do: the API server compresses large lists, which takes more CPU time than to send them as they are.
	config.DisableCompression = true
	if config.Dial == nil {
		config.Dial = dial
	}
	read := &clock{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return clockReader{next, read} })
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the HTTP client: %w", err)
	}
	unshared, err := unsharedClient(config)
	if err != nil {
		return nil, fmt.Errorf("make the HTTP client: %w", err)
	}
	config = dynamic.ConfigFor(config) // requests JSON
	config.GroupVersion, config.APIPath = nil, "/"
	client := &Client{timeout: answerTimeout, bookmark: bookmarkTimeout, keepManagedFields: keepManagedFields, clock: read}
	if client.rest, err = rest.UnversionedRESTClientForConfigAndClient(config, shared); err == nil {
		client.apart, err = rest.UnversionedRESTClientForConfigAndClient(config, unshared)
	}
	if err != nil {
		return nil, fmt.Errorf("make the REST client: %w", err)
	}
	return client, nil
}

// dial connects as client-go does, but leaves an IP address that does not answer after five seconds, not 30: one of an API server that died
// would hold up a leader's watches. A name has the longer limit: its lookup alone takes five if the first name server is gone.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	if _, err := netip.ParseAddrPort(address); err == nil {
		dialer.Timeout = 5 * time.Second
	}
	return dialer.DialContext(ctx, network, address)
}

// unsharedClient makes an HTTP client that opens a connection for each request: through a load balancer, perhaps to another API server.
func unsharedClient(config *rest.Config) (*http.Client, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	transport, err := rest.HTTPWrappersForConfig(config, &http.Transport{
		Proxy: proxy, DialContext: config.Dial, TLSClientConfig: tlsConfig, TLSHandshakeTimeout: 10 * time.Second, DisableKeepAlives: true,
	})
	return &http.Client{Transport: transport}, err
}

// onNewConnections returns a client that opens a connection for each request.
func (c *Client) onNewConnections() *Client {
	other := *c
	other.rest = c.apart
	return &other
}

var errTooLarge = errors.New("the answer is too large")

// get reads the body of an answer into a buffer, and otherwise returns the error that the server sent. An answer of more than most bytes is
// errTooLarge; the rest of it is not read.
func (c *Client) get(ctx context.Context, buffer *bytes.Buffer, request *rest.Request, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errNoAnswer)
	defer cancel()
	ctx, connection := withConnection(ctx)
	var text []byte
	body, err := request.Stream(ctx)
	if err == nil {
		defer body.Close()
		_, err = buffer.ReadFrom(io.LimitReader(body, most+1))
		text = buffer.Bytes()
	}
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errNoAnswer):
		if body != nil || !connection.answered() { // else the server requested a delay, as for a resource that it cannot read now
			connection.leave()
		}
		return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	case err == nil && int64(len(text)) > most:
		return nil, errTooLarge
	}
	return text, err
}

// connection is what a request was sent on last: client-go repeats one for which the server requests a delay.
type connection struct {
	got   atomic.Pointer[httptrace.GotConnInfo]
	began atomic.Bool // the response
}

// withConnection returns a context for a request, and its connection.
func withConnection(ctx context.Context) (context.Context, *connection) {
	c := &connection{}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			if ctx.Err() == nil { // client-go begins another request even if ctx ends in the delay
				c.began.Store(false)
				c.got.Store(&info)
			}
		},
		GotFirstResponseByte: func() { c.began.Store(true) },
	}), c
}

// answered reports whether a response has begun.
func (c *connection) answered() bool { return c.began.Load() }

// is reports whether both requests were sent on the same connection.
func (c *connection) is(other *connection) bool {
	a, b := c.got.Load(), other.got.Load()
	return a != nil && b != nil && a.Conn == b.Conn
}

// leave closes the connection. Otherwise HTTP/2 sends all further requests on it, too, as long as what is at its other end answers pings.
func (c *connection) leave() {
	if info := c.got.Load(); info != nil {
		_ = info.Conn.Close()
	}
}

// pingTimeout is how long an API server may take to answer the smallest request, on a connection that may be dead.
const pingTimeout = 5 * time.Second

// leaveIfDead closes a connection unless it answers another request. One watch that hangs, as of an aggregated API that does, ends alone: with
// HTTP/2 all others are on the same connection.
func (c *Client) leaveIfDead(ctx context.Context, suspect *connection) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	ctx, used := withConnection(ctx)
	if body, err := c.rest.Get().AbsPath("/version").Stream(ctx); err == nil {
		_ = body.Close()
	}
	if used.answered() && used.is(suspect) || errors.Is(ctx.Err(), context.Canceled) { // the watch has ended meanwhile
		return
	}
	suspect.leave()
}

// getJSON decodes an answer, whose kind must be as given: a proxy may answer with JSON of its own.
func (c *Client) getJSON(ctx context.Context, request *rest.Request, kind string, into any) error {
	body, err := c.get(ctx, &bytes.Buffer{}, request, math.MaxInt64-1)
	if err != nil {
		return err
	}
	var found metav1.TypeMeta
	if err := json.Unmarshal(body, &found); err != nil {
		return err
	}
	if found.Kind != kind {
		return fmt.Errorf("unexpected kind %q", found.Kind)
	}
	return json.Unmarshal(body, into)
}

// ClusterUID identifies the cluster by the uid of its namespace kube-system, which lives as long as the cluster does.
func (c *Client) ClusterUID(ctx context.Context) (string, error) {
	var namespace metav1.PartialObjectMetadata
	err := c.getJSON(ctx, c.rest.Get().AbsPath("/api/v1/namespaces/kube-system"), "Namespace", &namespace)
	return string(namespace.UID), err
}

// collection is the objects of one resource in one scope, narrowed by selectors.
type collection struct {
	client        *Client
	resource      schema.GroupVersionResource
	namespace     string // empty for the whole cluster
	labelSelector string
	fieldSelector string
	metadataOnly  bool // for lists: the objects are PartialObjectMetadata
}

// watch opens a watch. It stays open until it is closed, ctx ends, or the server ends it after the options' time-out. If the
// server does not, events may be missing: that is an error.
func (c *collection) watch(ctx context.Context, options metav1.ListOptions) (*frames, error) {
	options.Watch = true
	timeout := time.Duration(*options.TimeoutSeconds) * time.Second
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, connection := withConnection(ctx)
	late := time.AfterFunc(c.client.timeout, func() { cancel(errNoAnswer) })
	body, err := c.request(options).Stream(ctx)
	if !late.Stop() { // what was opened in that moment has ended again
		if err == nil {
			_ = body.Close()
		}
		if !connection.answered() {
			connection.leave()
		}
		err = errNoAnswer
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	leave := func() { c.client.leaveIfDead(caller, connection) }
	watched := &watchBody{ReadCloser: body, ctx: ctx, cancel: cancel, leave: leave, client: c.client, end: time.Now().Add(timeout + c.client.timeout)}
	watched.timer = time.AfterFunc(timeout, func() { cancel(errOverdue) })
	watched.timer.Stop() // until something waits
	watched.frames = newFrames(watched, c.client.keepManagedFields)
	return watched.frames, nil
}

// request begins a request for the collection, with its selectors.
func (c *collection) request(options metav1.ListOptions) *rest.Request {
	options.LabelSelector, options.FieldSelector = c.labelSelector, c.fieldSelector
	path := delta.Ref{Resource: c.resource, Namespace: c.namespace}.Path()
	request := c.client.rest.Get().AbsPath(path).SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.Unversioned)
	if c.metadataOnly {
		request.SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json")
	}
	return request
}
