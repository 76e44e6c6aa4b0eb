package sinks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// OAuth2 are the keys of an oauth2 section: the client credentials grant (RFC 6749 §4.4).
type OAuth2 struct {
	TokenURL         string            `yaml:"tokenURL" required:"true" doc:"where tokens are made, an https URL"`
	ClientID         string            `yaml:"clientID" required:"true" doc:"name of the client"`
	ClientSecret     string            `yaml:"clientSecret" doc:"the secret itself. clientSecretFile is better"`
	ClientSecretFile string            `yaml:"clientSecretFile" doc:"file with the client's secret"`
	Scopes           []string          `yaml:"scopes" doc:"what the token is for"`
	Parameters       map[string]string `yaml:"parameters" doc:"more parameters of the request for a token, such as audience"`
	TLS              *TLS              `yaml:"tls" doc:"TLS with the token server. The default trusts the authorities of the system"`
}

// Validate adds the faults of the section at path.
func (o *OAuth2) Validate(faults *Faults, path string, plain *Plaintext) {
	target, err := url.Parse(o.TokenURL)
	switch {
	case err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Hostname() == "":
		faults.Fail(path+".tokenURL", "must be an absolute http or https URL")
	case target.User != nil:
		faults.Fail(path+".tokenURL", "holds a user name: set clientID")
	case target.Scheme == "http":
		plain.CheckCredentials(faults, path+".tokenURL", "begin it with https://")
	}
	faults.FailIf(o.ClientID == "", path+".clientID", "missing")
	faults.FailIf((o.ClientSecret == "") == (o.ClientSecretFile == ""), path+".clientSecretFile", "set one of clientSecret and clientSecretFile")
	if o.TLS != nil {
		o.TLS.validate(faults, path+".tls")
	}
}

// Tokens returns what keeps the tokens of the section, which key names: "auth.oauth2". Its connections end with life.
func (o *OAuth2) Tokens(life context.Context, key string) *Tokens {
	return &Tokens{config: o, key: key, life: life, turn: make(chan struct{}, 1)}
}

// connectTimeout bounds the connection to a token server.
const connectTimeout = 5 * time.Second

// Tokens keeps a token for as long as it is valid.
type Tokens struct {
	config *OAuth2
	key    string
	life   context.Context

	turn   chan struct{} // holds one element while a token is read or made; guards what follows
	token  *oauth2.Token
	secret string // by which token was made
}

// Get returns a token that is valid, and the client's secret. It makes a new one if the last is about to expire, or if the secret has
// changed. Its errors hold neither.
func (t *Tokens) Get(ctx context.Context) (token, secret string, err error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return "", "", fmt.Errorf("%s: wait for a token: %w", t.key, ctx.Err())
	}
	secret, err = t.config.secret(t.key)
	if err != nil {
		return "", "", err
	}
	if t.secret == secret && t.token.Valid() {
		return t.token.AccessToken, secret, nil
	}
	made, err := t.make(ctx, secret)
	if err != nil {
		return "", "", err
	}
	t.token, t.secret = made, secret
	return made.AccessToken, secret, nil
}

// Refused says that a peer has refused this token, although it has not expired. The next Get returns another one.
func (t *Tokens) Refused(token string) {
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	if t.token != nil && t.token.AccessToken == token {
		t.token = nil
	}
}

func (o *OAuth2) secret(key string) (string, error) {
	return ReadSecret(key+".clientSecretFile", o.ClientSecretFile, o.ClientSecret)
}

// CheckFiles reports a file of the section that cannot be read.
func (o *OAuth2) CheckFiles(key string) error {
	_, err := o.secret(key)
	if err == nil && o.TLS != nil {
		_, err = o.TLS.Config("")
	}
	return err
}

func (t *Tokens) make(ctx context.Context, secret string) (*oauth2.Token, error) {
	c := t.config
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         DialUntil(t.life, connectTimeout), //nolint:contextcheck // a token is made for all callers, so one of them that ends must not end it
		TLSHandshakeTimeout: connectTimeout, ForceAttemptHTTP2: true,
		DisableKeepAlives: true, // the next token is far away
	}
	target, err := url.Parse(c.TokenURL)
	if err == nil && c.TLS != nil {
		transport.TLSClientConfig, err = c.TLS.Config(target.Hostname())
	}
	if err != nil {
		return nil, err
	}
	request := clientcredentials.Config{
		ClientID: c.ClientID, ClientSecret: secret, TokenURL: c.TokenURL, Scopes: c.Scopes, EndpointParams: url.Values{},
	}
	for name, value := range c.Parameters {
		request.EndpointParams.Set(name, value)
	}
	token, err := request.Token(context.WithValue(ctx, oauth2.HTTPClient, &http.Client{Transport: transport}))
	var refused *oauth2.RetrieveError
	var failed *url.Error
	switch {
	case err == nil:
		return token, nil
	case errors.As(err, &refused): // its text has the whole answer
		reason := ReasonUnauthorized
		if refused.Response.StatusCode >= http.StatusInternalServerError {
			reason = ReasonUnavailable
		}
		return nil, Transient(reason, fmt.Errorf("%s: no token from %s://%s: %s %s", t.key, target.Scheme, target.Host, refused.Response.Status, refused.ErrorCode))
	case errors.As(err, &failed):
		err = failed.Err // its text has the whole URL
	}
	return nil, Transient(Classify(err).Reason, fmt.Errorf("%s: no token from %s://%s: %w", t.key, target.Scheme, target.Host, err))
}
