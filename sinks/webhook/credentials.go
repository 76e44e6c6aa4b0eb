package webhook

import (
	"context"
	"encoding/base64"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/kubeferry/kubeferry/sinks"
)

// secrets are the credentials at one moment.
type secrets struct {
	authorization string
	token         string // in authorization, if a token server has made it
	signing       [][]byte
	hidden        []string // what must not show in an error
}

// CheckFiles reports a file that cannot be read: Open would fail.
func (c *Config) CheckFiles() error {
	_, err := c.readSecrets(nil)
	if err == nil && c.Auth != nil && c.Auth.OAuth2 != nil {
		err = c.Auth.OAuth2.CheckFiles("auth.oauth2")
	}
	if err == nil && c.TLS != nil {
		_, err = c.TLS.Config("")
	}
	return err
}

// credentials returns the credentials as they are now.
func (s *Sink) credentials(ctx context.Context) (*secrets, error) {
	creds, err := s.config.readSecrets(s.hidden)
	if err != nil || s.tokens == nil {
		return creds, err
	}
	token, secret, err := s.tokens.Get(ctx)
	if err != nil {
		return nil, err
	}
	creds.token, creds.authorization = token, "Bearer "+token
	creds.hidden = append(creds.hidden, token, secret)
	return creds, nil
}

// readSecrets returns the credentials as the files have them now. hidden is what else must not show in an error.
func (c *Config) readSecrets(hidden []string) (*secrets, error) {
	s := &secrets{hidden: slices.Clip(hidden)}
	if c.Auth != nil {
		if err := s.authenticate(c.Auth); err != nil {
			return nil, err
		}
	}
	if c.Signature == nil {
		return s, nil
	}
	if err := s.addKey("signature.secretFile", c.Signature.SecretFile); err != nil {
		return nil, err
	}
	if previous := c.Signature.PreviousSecretFile; previous != "" {
		// The previous secret may go at the end of a rotation.
		if err := s.addKey("signature.previousSecretFile", previous); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return s, nil
}

func (s *secrets) authenticate(auth *Auth) error {
	switch {
	case auth.OAuth2 != nil: // it takes a request
		return nil
	case auth.Basic == nil:
		token, err := sinks.ReadSecret("auth.bearerTokenFile", auth.BearerTokenFile, "")
		if err != nil {
			return err
		}
		if !httpguts.ValidHeaderFieldValue(token) {
			return sinks.Transient(sinks.ReasonUnauthorized, errors.New("auth.bearerTokenFile: holds characters that a header cannot"))
		}
		s.authorization = "Bearer " + token
		s.hidden = append(s.hidden, token)
		return nil
	}
	password, err := sinks.ReadSecret("auth.basic.passwordFile", auth.Basic.PasswordFile, auth.Basic.Password)
	if err != nil {
		return err
	}
	pair := base64.StdEncoding.EncodeToString([]byte(auth.Basic.Username + ":" + password))
	s.authorization = "Basic " + pair
	s.hidden = append(s.hidden, password, pair)
	return nil
}

// addKey adds a signing secret. Its form is that of the Standard Webhooks libraries: base64, with or without whsec_ in front.
func (s *secrets) addKey(name, path string) error {
	content, err := sinks.ReadSecret(name, path, "")
	if err != nil {
		return err
	}
	coded := strings.TrimPrefix(content, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(coded)
	if err != nil || len(key) == 0 {
		return &sinks.FileError{Key: name, Path: path, Err: errNotBase64}
	}
	s.signing = append(s.signing, key)
	s.hidden = append(s.hidden, coded, content)
	return nil
}

// secretPrefix may stand in front of a signing secret.
const secretPrefix = "whsec_"

var errNotBase64 = errors.New("the secret is not base64, with or without whsec_ in front: make one by openssl rand -base64 32, " +
	"or write the bytes that the receiver uses in base64")
