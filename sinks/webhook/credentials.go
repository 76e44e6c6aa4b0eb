package webhook

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"

	"golang.org/x/net/http/httpguts"

	"github.com/kubeferry/kubeferry/sinks"
)

// credentials are the files and values to authenticate with.
type credentials struct {
	basic                              *Basic
	token, password, current, previous *sinks.SecretFile // nil if not configured
	fixed                              []string          // what else must not be shown
}

// secrets are the credentials at one moment.
type secrets struct {
	authorization string
	signing       [][]byte
	hidden        []string // what must not show in an error
}

func newCredentials(c *Config, target *url.URL) *credentials {
	creds := &credentials{fixed: confidential(c, target)}
	file := func(key, path string) *sinks.SecretFile {
		if path == "" {
			return nil
		}
		return sinks.NewSecretFile(key, path)
	}
	if c.Auth != nil {
		creds.token, creds.basic = file("auth.bearerTokenFile", c.Auth.BearerTokenFile), c.Auth.Basic
		if creds.basic != nil {
			creds.password = file("auth.basic.passwordFile", creds.basic.PasswordFile)
		}
	}
	if c.Signature != nil {
		creds.current = file("signature.secretFile", c.Signature.SecretFile)
		creds.previous = file("signature.previousSecretFile", c.Signature.PreviousSecretFile)
	}
	return creds
}

// read returns the credentials as the files have them now.
func (c *credentials) read() (*secrets, error) {
	s := &secrets{hidden: slices.Clip(c.fixed)}
	if c.token != nil {
		token, err := c.token.Read()
		if err != nil {
			return nil, err
		}
		if !httpguts.ValidHeaderFieldValue(string(token)) {
			return nil, sinks.Transient(sinks.ReasonUnauthorized, errors.New("auth.bearerTokenFile: holds characters that a header cannot"))
		}
		s.authorization = "Bearer " + string(token)
		s.hidden = append(s.hidden, string(token))
	}
	if c.basic != nil {
		password := []byte(c.basic.Password)
		if c.password != nil {
			var err error
			if password, err = c.password.Read(); err != nil {
				return nil, err
			}
		}
		pair := base64.StdEncoding.EncodeToString([]byte(c.basic.Username + ":" + string(password)))
		s.authorization = "Basic " + pair
		s.hidden = append(s.hidden, string(password), pair)
	}
	if c.current != nil {
		if err := s.addKey(c.current); err != nil {
			return nil, fmt.Errorf("signature.secretFile: %w", err)
		}
	}
	if c.previous != nil {
		// The previous secret may go at the end of a rotation.
		if err := s.addKey(c.previous); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("signature.previousSecretFile: %w", err)
		}
	}
	return s, nil
}

func (s *secrets) addKey(file *sinks.SecretFile) error {
	content, err := file.Read()
	if err != nil {
		return err
	}
	key := content
	if coded, ok := bytes.CutPrefix(content, []byte("whsec_")); ok {
		key, err = base64.StdEncoding.DecodeString(string(coded))
		if err != nil || len(key) == 0 {
			return sinks.Transient(sinks.ReasonUnauthorized, errors.New("what follows whsec_ is not base64"))
		}
		s.hidden = append(s.hidden, string(coded))
	}
	s.signing = append(s.signing, key)
	s.hidden = append(s.hidden, string(content))
	return nil
}
