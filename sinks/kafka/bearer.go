package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/kubeferry/kubeferry/sinks"
)

var (
	_ sasl.Mechanism    = bearer{}
	_ sasl.StateMachine = session{}
)

// bearer is the SASL mechanism OAUTHBEARER (RFC 7628, KIP-255). Each connection has a token that is valid then.
type bearer struct {
	extensions map[string]string
	token      func(context.Context) (string, error)
	refused    func(token string) // called if a broker does not take the token
}

// bearerOf returns the mechanism for a configuration with tokens. life ends the connections to a token server.
func bearerOf(life context.Context, config *SASL) bearer {
	b := bearer{extensions: config.Extensions, refused: func(string) {}}
	switch {
	case config.Mechanism == mskIAM:
		iam := &iamTokens{region: config.Region}
		b.token, b.refused = iam.Get, iam.Refused
	case config.OAuth2 != nil:
		tokens := config.OAuth2.Tokens(life, "sasl.oauth2")
		b.refused = tokens.Refused
		b.token = func(ctx context.Context) (string, error) {
			token, _, err := tokens.Get(ctx)
			return token, err
		}
	default:
		b.token = func(context.Context) (string, error) { return sinks.ReadSecret("sasl.tokenFile", config.TokenFile, "") }
	}
	return b
}

// Name implements [sasl.Mechanism].
func (bearer) Name() string { return oauthBearer }

// Start implements [sasl.Mechanism].
func (b bearer) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	token, err := b.token(ctx)
	if err != nil {
		return nil, nil, err
	}
	if strings.ContainsRune(token, 1) {
		return nil, nil, sinks.Transient(sinks.ReasonUnauthorized, errors.New("the token of sasl holds a control character"))
	}
	message := "n,,\x01auth=Bearer " + token + "\x01"
	for _, name := range slices.Sorted(maps.Keys(b.extensions)) {
		message += name + "=" + b.extensions[name] + "\x01"
	}
	return session{b.refused, token}, []byte(message + "\x01"), nil
}

// session is one login.
type session struct {
	refused func(token string)
	token   string
}

// Next implements [sasl.StateMachine]. A broker that takes the token answers nothing, one that does not a JSON object with the reason.
func (s session) Next(_ context.Context, challenge []byte) (done bool, response []byte, err error) {
	if len(challenge) == 0 {
		return true, nil, nil
	}
	s.refused(s.token)
	return false, nil, sinks.Transient(sinks.ReasonUnauthorized,
		fmt.Errorf("the broker does not take the token of sasl: %.200q", strings.ReplaceAll(string(challenge), s.token, "[masked]")))
}
