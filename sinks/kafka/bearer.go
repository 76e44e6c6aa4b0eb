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
	config *SASL
	tokens *sinks.Tokens // nil: the token is in config.TokenFile
}

// Name implements [sasl.Mechanism].
func (bearer) Name() string { return "OAUTHBEARER" }

// Start implements [sasl.Mechanism].
func (b bearer) Start(ctx context.Context) (_ sasl.StateMachine, _ []byte, err error) {
	var token string
	if b.tokens != nil {
		token, _, err = b.tokens.Get(ctx)
	} else {
		token, err = sinks.ReadSecret("sasl.tokenFile", b.config.TokenFile)
	}
	if err != nil {
		return nil, nil, err
	}
	if strings.ContainsRune(token, 1) {
		return nil, nil, sinks.Transient(sinks.ReasonUnauthorized, errors.New("the token of sasl holds a control character"))
	}
	message := "n,,\x01auth=Bearer " + token + "\x01"
	for _, name := range slices.Sorted(maps.Keys(b.config.Extensions)) {
		message += name + "=" + b.config.Extensions[name] + "\x01"
	}
	return session{b.tokens, token}, []byte(message + "\x01"), nil
}

// session is one login.
type session struct {
	tokens *sinks.Tokens
	token  string
}

// Next implements [sasl.StateMachine]. A broker that takes the token answers nothing, one that does not a JSON object with the reason.
func (s session) Next(_ context.Context, challenge []byte) (done bool, response []byte, err error) {
	if len(challenge) == 0 {
		return true, nil, nil
	}
	if s.tokens != nil {
		s.tokens.Refused(s.token)
	}
	return false, nil, sinks.Transient(sinks.ReasonUnauthorized,
		fmt.Errorf("the broker does not take the token of sasl: %.200q", strings.ReplaceAll(string(challenge), s.token, "[masked]")))
}
