package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// Authenticator makes and checks the tokens by which a standby and a leader show each other that they have the same ServiceAccount.
type Authenticator interface {
	// Token returns a token for an audience.
	Token(ctx context.Context, audience string) (string, error)
	// Check returns why a token is not one of this process's ServiceAccount for the audience; nil if it is one.
	Check(ctx context.Context, audience, token string) error
}

// audience is what a standby's token is made for, so that it is worth nothing to anybody but the leader whose certificate that is.
func audience(certificate string) string { return "kubeferry:" + certificate }

// leaderAudience is what a leader's token is made for: whoever writes another certificate into the Lease has none. It differs
// from a standby's, which would be sent back otherwise.
func leaderAudience(certificate string) string { return "kubeferry-leader:" + certificate }

// serviceAccount authenticates through the API server.
type serviceAccount struct {
	api             *API
	namespace, name string
}

// errRefused means that a token is not one of the ServiceAccount.
var errRefused = errors.New("the token is refused")

// ErrNoServiceAccount means that replicas could not recognize this process.
var ErrNoServiceAccount = errors.New("replicas need a ServiceAccount to recognize each other")

// NewAuthenticator returns one for the ServiceAccount that the requests are from. Any other user is [ErrNoServiceAccount].
func NewAuthenticator(ctx context.Context, api *API) (Authenticator, error) {
	name, err := api.whoAmI(ctx)
	if err != nil {
		return nil, fmt.Errorf("find out which ServiceAccount this is: %w", err)
	}
	parts := strings.Split(name, ":")
	if len(parts) != 4 || !strings.HasPrefix(name, "system:serviceaccount:") {
		return nil, fmt.Errorf("%w, and this is the user %q", ErrNoServiceAccount, name)
	}
	return &serviceAccount{api, parts[2], parts[3]}, nil
}

// Token implements [Authenticator].
func (a *serviceAccount) Token(ctx context.Context, audience string) (string, error) {
	seconds := int64(600) // the shortest that the API server makes
	token, err := a.api.requestToken(ctx, a.namespace, a.name, authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds})
	if err != nil {
		return "", fmt.Errorf("request a token: %w", err)
	}
	return token, nil
}

// Check implements [Authenticator].
func (a *serviceAccount) Check(ctx context.Context, audience, token string) error {
	if token == "" {
		return fmt.Errorf("%w: there is none", errRefused)
	}
	answer, err := a.api.reviewToken(ctx, authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}})
	want := "system:serviceaccount:" + a.namespace + ":" + a.name
	switch {
	case err != nil:
		return fmt.Errorf("review a token: %w", err)
	case !answer.Authenticated || !slices.Contains(answer.Audiences, audience):
		return fmt.Errorf("%w: it is not valid for this leader", errRefused)
	case answer.User.Username != want:
		return fmt.Errorf("%w: it is that of %q, not of %q", errRefused, answer.User.Username, want)
	}
	return nil
}
