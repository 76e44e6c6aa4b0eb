package source

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/delta"
)

// answerTimeout is how long to wait for an answer, of a watch for its beginning. The API server's own limit is a minute;
// what stands before it may have none, and then a connection that hangs would hold a watch for ever.
const answerTimeout = 90 * time.Second

var errNoAnswer = errors.New("the API server did not answer in time")

// Client talks to one API server. Watches bypass its rate limit.
type Client struct {
	rest    rest.Interface
	dynamic dynamic.Interface
	timeout time.Duration
}

// ClientOptions say what a client keeps of the objects that it gets.
type ClientOptions struct {
	// KeepManagedFields leaves metadata.managedFields in the objects. Where nobody wants them, it is cheapest to drop them
	// before anybody sees the object.
	KeepManagedFields bool
}

// NewClient makes a client whose watches carry a [delta.Object] for each object: a dynamic client with a
// serializer of ours.
func NewClient(config *rest.Config, options ClientOptions) (*Client, error) {
	config = rest.CopyConfig(config)
	if config.QPS == 0 {
		config.QPS, config.Burst = 20, 40 // discovery and pages of lists only
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the HTTP client: %w", err)
	}
	restClient, err := newRESTClient(config, httpClient, options)
	if err != nil {
		return nil, err
	}
	return &Client{rest: restClient, dynamic: dynamic.New(restClient), timeout: answerTimeout}, nil
}

func newRESTClient(config *rest.Config, httpClient *http.Client, options ClientOptions) (rest.Interface, error) {
	config = dynamic.ConfigFor(config)
	config.NegotiatedSerializer = newSerializer(options.KeepManagedFields)
	config.GroupVersion = nil
	config.APIPath = "/unused" // the dynamic client gives absolute paths
	client, err := rest.UnversionedRESTClientForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make the REST client: %w", err)
	}
	return client, nil
}

// get returns the body of an answer, and otherwise the error that the server sent.
func (c *Client) get(ctx context.Context, request *rest.Request) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errNoAnswer)
	defer cancel()
	result := request.Do(ctx)
	if err := result.Error(); err != nil { // that of Raw would not say what the server says
		if errors.Is(context.Cause(ctx), errNoAnswer) {
			err = fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		return nil, err
	}
	return result.Raw()
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

// watch opens a watch with the collection's selectors added to the options.
func (c *collection) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(c.client.timeout, cancel)
	w, err := c.open(ctx, options)
	if !late.Stop() { // what was opened in that moment has ended again
		if err == nil {
			w.Stop()
		}
		err = errNoAnswer
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &openWatch{w, cancel}, nil
}

// openWatch frees its context when it is stopped.
type openWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop implements watch.Interface.
func (w *openWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}

func (c *collection) open(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.LabelSelector, options.FieldSelector = c.labelSelector, c.fieldSelector
	resource := c.client.dynamic.Resource(c.resource)
	if c.namespace != "" {
		return resource.Namespace(c.namespace).Watch(ctx, options)
	}
	return resource.Watch(ctx, options)
}

// path is the collection's REST path.
func (c *collection) path() string {
	return delta.Ref{Resource: c.resource, Namespace: c.namespace}.Path()
}
