package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// answerTimeout is how long to wait for an answer, of a watch for its beginning. The API server's own limit is a minute;
// what stands before it may have none, and then a connection that hangs would hold a watch for ever.
const answerTimeout = 90 * time.Second

var (
	errNoAnswer = errors.New("the API server did not answer in time")
	errOverdue  = errors.New("the API server did not end the watch in time: the connection may be dead")
)

// Client talks to one API server. Watches bypass its rate limit.
type Client struct {
	rest    rest.Interface
	timeout time.Duration
	// keepManagedFields leaves metadata.managedFields in the objects of watches.
	keepManagedFields bool
}

// ClientOptions say what a client keeps of the objects that it gets.
type ClientOptions struct {
	// KeepManagedFields leaves metadata.managedFields in the objects. Where nobody wants them, it is cheapest to drop them
	// before anybody sees the object.
	KeepManagedFields bool
}

// NewClient makes a client.
func NewClient(config *rest.Config, options ClientOptions) (*Client, error) {
	config = rest.CopyConfig(config)
	if config.QPS == 0 {
		config.QPS, config.Burst = 20, 40 // discovery and pages of lists only
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the HTTP client: %w", err)
	}
	restClient, err := newRESTClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	return &Client{rest: restClient, timeout: answerTimeout, keepManagedFields: options.KeepManagedFields}, nil
}

// newRESTClient makes a client that asks for JSON, as the dynamic client does, and whose requests give absolute paths.
func newRESTClient(config *rest.Config, httpClient *http.Client) (rest.Interface, error) {
	config = dynamic.ConfigFor(config)
	config.GroupVersion, config.APIPath = nil, "/"
	client, err := rest.UnversionedRESTClientForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make the REST client: %w", err)
	}
	return client, nil
}

// get returns the body of an answer, and otherwise the error that the server sent.
func (c *Client) get(ctx context.Context, request *rest.Request) ([]byte, error) {
	return c.getAtMost(ctx, request, math.MaxInt64-1)
}

var errTooLarge = errors.New("the answer is too large")

// getAtMost is get for an answer that is refused if it is larger; then the rest of it is not read.
func (c *Client) getAtMost(ctx context.Context, request *rest.Request, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errNoAnswer)
	defer cancel()
	text, err := readAtMost(ctx, request, most)
	if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) {
		err = fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	return text, err
}

func readAtMost(ctx context.Context, request *rest.Request, most int64) ([]byte, error) {
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, most+1))
	if err == nil && int64(len(text)) > most {
		err = errTooLarge
	}
	return text, err
}

// ClusterUID identifies the cluster by the uid of its namespace kube-system, which lives as long as the cluster does.
func (c *Client) ClusterUID(ctx context.Context) (string, error) {
	body, err := c.get(ctx, c.rest.Get().AbsPath("/api/v1/namespaces/kube-system"))
	if err != nil {
		return "", err
	}
	namespace, err := delta.NewObject(body)
	if err != nil {
		return "", err
	}
	return string(namespace.UID()), nil
}

// collection is the objects of one resource in one scope, narrowed by selectors.
type collection struct {
	client        *Client
	resource      schema.GroupVersionResource
	namespace     string // empty for the whole cluster
	labelSelector string
	fieldSelector string
}

// watch opens a watch that goes on from a resource version, or that begins with the present state (KEP-3157) if that is
// empty. It lives until it is closed, ctx ends, or the server ends it after the time-out. If that does not come, nothing
// can be known of what the watch kept to itself: it is an error then.
func (c *collection) watch(ctx context.Context, from string, timeout time.Duration) (*frames, error) {
	request := c.request().Param("watch", "true").Param("allowWatchBookmarks", "true").Throttle(nil).
		Param("timeoutSeconds", strconv.Itoa(int(timeout.Seconds())))
	if from != "" {
		request = request.Param("resourceVersion", from)
	} else {
		request = request.Param("sendInitialEvents", "true").
			Param("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(c.client.timeout, func() { cancel(errNoAnswer) })
	body, err := request.Stream(ctx)
	if !late.Stop() { // what was opened in that moment has ended again
		if err == nil {
			_ = body.Close()
		}
		err = errNoAnswer
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	stopped := &stoppedBody{
		ReadCloser: body, ctx: ctx, cancel: cancel, end: time.Now().Add(timeout + c.client.timeout), grace: c.client.timeout,
		overdue: time.AfterFunc(timeout, func() { cancel(errOverdue) }),
	}
	stopped.overdue.Stop() // until something waits
	return newFrames(stopped, c.client.keepManagedFields), nil
}

// stoppedBody ends its request when it is closed, or when a read waits beyond the end. What arrived while nobody read is
// read first, however late that is: a handler that blocks may take hours.
type stoppedBody struct {
	io.ReadCloser
	ctx     context.Context
	cancel  context.CancelCauseFunc
	end     time.Time
	grace   time.Duration
	overdue *time.Timer
}

func (b *stoppedBody) Read(p []byte) (int, error) {
	b.overdue.Reset(max(time.Until(b.end), b.grace))
	n, err := b.ReadCloser.Read(p)
	b.overdue.Stop()
	if err != nil && errors.Is(context.Cause(b.ctx), errOverdue) {
		err = errOverdue
	}
	return n, err
}

func (b *stoppedBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// request begins a request for the collection, with its selectors.
func (c *collection) request() *rest.Request {
	request := c.client.rest.Get().AbsPath(c.path())
	if c.labelSelector != "" {
		request = request.Param("labelSelector", c.labelSelector)
	}
	if c.fieldSelector != "" {
		request = request.Param("fieldSelector", c.fieldSelector)
	}
	return request
}

// path is the collection's REST path.
func (c *collection) path() string {
	return delta.Ref{Resource: c.resource, Namespace: c.namespace}.Path()
}
