package replication

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
)

// API sends the requests of replicas to the API server. The typed clients of client-go would do the same, but each of them links the types of
// Kubernetes' whole API.
type API struct{ client *rest.RESTClient }

// NewAPI makes a client.
func NewAPI(config *rest.Config) (*API, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // errors are of this version
	utilruntime.Must(coordinationv1.AddToScheme(scheme))
	utilruntime.Must(authenticationv1.AddToScheme(scheme))
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/", &schema.GroupVersion{}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the REST client: %w", err)
	}
	return &API{client}, nil
}

// Leases returns the client of a namespace's Leases.
func (a *API) Leases(namespace string) LeaseClient {
	return &leases{a.client, "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"}
}

type leases struct {
	client *rest.RESTClient
	path   string
}

func (l *leases) Get(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	return answer(ctx, l.client.Get().AbsPath(l.path, name), &coordinationv1.Lease{})
}

func (l *leases) Create(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return answer(ctx, l.client.Post().AbsPath(l.path).Body(lease), &coordinationv1.Lease{})
}

func (l *leases) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return answer(ctx, l.client.Put().AbsPath(l.path, lease.Name).Body(lease), &coordinationv1.Lease{})
}

// whoAmI returns the name of the user that the requests are from.
func (a *API) whoAmI(ctx context.Context) (string, error) {
	request := a.client.Post().AbsPath("/apis/authentication.k8s.io/v1/selfsubjectreviews").Body(&authenticationv1.SelfSubjectReview{})
	review, err := answer(ctx, request, &authenticationv1.SelfSubjectReview{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}

// requestToken requests a token of a ServiceAccount.
func (a *API) requestToken(ctx context.Context, namespace, name string, spec authenticationv1.TokenRequestSpec) (string, error) {
	request := a.client.Post().AbsPath("/api/v1/namespaces", namespace, "serviceaccounts", name, "token").Body(&authenticationv1.TokenRequest{Spec: spec})
	made, err := answer(ctx, request, &authenticationv1.TokenRequest{})
	if err != nil {
		return "", err
	}
	return made.Status.Token, nil
}

// reviewToken has the API server check a token.
func (a *API) reviewToken(ctx context.Context, spec authenticationv1.TokenReviewSpec) (*authenticationv1.TokenReviewStatus, error) {
	request := a.client.Post().AbsPath("/apis/authentication.k8s.io/v1/tokenreviews").Body(&authenticationv1.TokenReview{Spec: spec})
	review, err := answer(ctx, request, &authenticationv1.TokenReview{})
	if err != nil {
		return nil, err
	}
	return &review.Status, nil
}

// answer sends a request and decodes its answer. Its error is the one that the API server sent.
func answer[T runtime.Object](ctx context.Context, request *rest.Request, into T) (T, error) {
	err := request.Do(ctx).Into(into)
	return into, err
}
