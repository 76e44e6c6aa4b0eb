package kafka

import (
	"context"
	"fmt"
	"sync"

	"github.com/aws/aws-msk-iam-sasl-signer-go/signer"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/kubeferry/kubeferry/sinks"
)

// iamTokens makes tokens for Amazon MSK with the credentials that AWS' programs find: in the environment, by the ServiceAccount of the Pod
// (EKS Pod Identity, IRSA), in files, or by the node.
//
// A token costs a signature and no request, so each connection has a new one. Credentials are kept by the SDK for as long as they are valid.
type iamTokens struct {
	region string

	mu          sync.Mutex              // guards what follows
	credentials aws.CredentialsProvider // nil until the first token, and after an error
}

// Get returns a token, which is valid for 15 minutes.
func (t *iamTokens) Get(ctx context.Context) (string, error) {
	provider, err := t.provider(ctx)
	if err == nil {
		var token string
		if token, _, err = signer.GenerateAuthTokenFromCredentialsProvider(ctx, t.region, provider); err == nil {
			return token, nil
		}
	}
	t.Refused("") // the SDK would look for them in the same place again
	return "", sinks.Transient(sinks.ReasonUnauthorized, fmt.Errorf("sasl: no token for Amazon MSK: %w", err))
}

func (t *iamTokens) provider(ctx context.Context) (aws.CredentialsProvider, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.credentials == nil {
		loaded, err := config.LoadDefaultConfig(ctx, config.WithRegion(t.region))
		if err != nil {
			return nil, err
		}
		t.credentials = loaded.Credentials
	}
	return t.credentials, nil
}

// Refused says that the brokers have refused a token. The credentials for the next one are read anew: the SDK keeps those of a file for ever.
func (t *iamTokens) Refused(string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.credentials = nil
}
