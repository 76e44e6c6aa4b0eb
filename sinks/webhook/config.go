// Package webhook delivers records by HTTP, signed as the Standard Webhooks specification asks if a secret is given.
package webhook

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// Kind is the entry of this sink in the registry.
func Kind() sinks.Kind {
	return sinks.Kind{Name: "webhook", New: func() sinks.Config { return NewConfig() }}
}

// Config is the section of the configuration file.
type Config struct {
	sinks.Common `yaml:",inline"`

	URL         string            `yaml:"url" doc:"where to send to: an absolute http or https URL"`
	Method      string            `yaml:"method" doc:"POST, PUT or PATCH"`
	Headers     map[string]string `yaml:"headers" doc:"headers to add to each request"`
	Auth        *Auth             `yaml:"auth" doc:"how to authenticate"`
	Signature   *Signature        `yaml:"signature" doc:"sign each request as Standard Webhooks do"`
	Compression string            `yaml:"compression" doc:"none or gzip; a signature covers the body before compression"`
	// PermanentStatuses of a single record send it to the dead letter; of an array, they have it taken apart.
	PermanentStatuses []int `yaml:"permanentStatuses" doc:"the statuses that say of a record that it can never be taken, so that it goes to the dead letter; every other one is tried again"`
}

// Auth holds one way to authenticate.
type Auth struct {
	BearerTokenFile string `yaml:"bearerTokenFile" doc:"file with a token for the Authorization header; read again when it changes"`
	Basic           *Basic `yaml:"basic" doc:"user name and password"`
}

// Basic is HTTP basic authentication.
type Basic struct {
	Username     string `yaml:"username" doc:"user name"`
	Password     string `yaml:"password" doc:"password; rather use passwordFile"`
	PasswordFile string `yaml:"passwordFile" doc:"file with the password; read again when it changes"`
}

// Signature names the files of the signing secrets, each with whsec_ and base64, or the bare secret.
type Signature struct {
	SecretFile         string `yaml:"secretFile" doc:"file with the signing secret: whsec_ and base64, or the bare secret"`
	PreviousSecretFile string `yaml:"previousSecretFile" doc:"file with the secret before; while it exists, requests carry both signatures"`
}

const (
	compressionNone = "none"
	compressionGzip = "gzip"
)

// NewConfig returns the defaults. Each record is a request of its own, because that is what most receivers expect:
// with batch.maxRecords over 1 every body is a JSON array.
func NewConfig() *Config {
	return &Config{
		Common: sinks.Common{
			Batch:       sinks.Batch{MaxRecords: 1, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond},
			Concurrency: 8,
			Timeout:     10 * time.Second,
		},
		Method:      http.MethodPost,
		Compression: compressionNone,
		PermanentStatuses: []int{
			http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
		},
	}
}

// Validate implements [sinks.Config].
func (c *Config) Validate() []sinks.Fault {
	faults := c.Common.Validate()
	add := func(path, format string, args ...any) {
		faults = append(faults, sinks.Fault{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	warn := func(path, message string) {
		faults = append(faults, sinks.Fault{Path: path, Message: message, Warning: true})
	}
	target, fault := parseURL(c.URL)
	if fault != "" {
		add("url", "%s", fault)
	}
	if !slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, c.Method) {
		add("method", "%q is none of POST, PUT, PATCH", c.Method)
	}
	if c.Compression != compressionNone && c.Compression != compressionGzip {
		add("compression", "%q is neither none nor gzip", c.Compression)
	}
	names := slices.Sorted(maps.Keys(c.Headers))
	for i, name := range names {
		value := c.Headers[name]
		same := slices.IndexFunc(names, func(other string) bool { return strings.EqualFold(other, name) })
		switch path := "headers." + name; {
		case !validName(name):
			add(path, "not a valid header name")
		case !validValue(value):
			add(path, "the value holds characters that a header cannot")
		case owned(name):
			add(path, "kubeferry sets this header itself")
		case c.Auth != nil && strings.EqualFold(name, "Authorization"):
			add(path, "auth sets this header")
		case same < i:
			add(path, "this is %s again: upper and lower case make no difference", names[same])
		}
	}
	for i, status := range c.PermanentStatuses {
		path := fmt.Sprintf("permanentStatuses[%d]", i)
		switch reason := reasonOf(status); {
		case status < 400 || status > 599:
			add(path, "must be a status from 400 to 599: others are no refusal")
		case slices.Index(c.PermanentStatuses, status) < i:
			add(path, "%d is in this list already", status)
		case reason != sinks.ReasonTooLarge && reason != sinks.ReasonRejected && reason != sinks.ReasonOther:
			warn(path, fmt.Sprintf("%d mostly says something of the receiver or of this configuration, not of a record: while it lasts, records go to the dead letter", status))
		}
	}
	c.Auth.validate(add)
	if s := c.Signature; s != nil && s.SecretFile == "" {
		add("signature.secretFile", "missing")
	} else if s != nil {
		warnOfShort("signature.secretFile", s.SecretFile, warn)
		warnOfShort("signature.previousSecretFile", s.PreviousSecretFile, warn)
	}
	if target != nil && target.Scheme == "http" {
		if c.Auth != nil || headerOf(c.Headers, "Authorization") != "" {
			warn("url", "credentials are sent over plain http, readable by anyone on the way")
		}
		if c.TLS != nil {
			warn("tls", "has no effect: url is plain http")
		}
	}
	return faults
}

// leastSecret is what Standard Webhooks asks of a secret at least: 24 to 64 random bytes.
const leastSecret = 24

// warnOfShort looks at a signing secret that is there. One that is not need not be where the file is validated.
func warnOfShort(path, file string, warn func(path, message string)) {
	if file == "" {
		return
	}
	var s secrets
	if s.addKey(sinks.NewSecretFile(file)) == nil && len(s.signing[0]) < leastSecret {
		warn(path, fmt.Sprintf("the secret has fewer than the %d bytes that Standard Webhooks asks for: make one by openssl rand -base64 32", leastSecret))
	}
}

func (a *Auth) validate(add func(path, format string, args ...any)) {
	switch {
	case a == nil:
	case a.BearerTokenFile != "" && a.Basic != nil:
		add("auth", "bearerTokenFile and basic exclude each other")
	case a.BearerTokenFile == "" && a.Basic == nil:
		add("auth", "set bearerTokenFile or basic")
	}
	if a == nil || a.Basic == nil {
		return
	}
	b := a.Basic
	if b.Username == "" || strings.Contains(b.Username, ":") {
		add("auth.basic.username", "must be set, and cannot hold a colon")
	}
	if (b.Password == "") == (b.PasswordFile == "") {
		add("auth.basic", "set one of password and passwordFile")
	}
}

// parseURL returns the URL, or what is wrong with it. The message never repeats the text, which may hold a token.
func parseURL(text string) (target *url.URL, fault string) {
	if text == "" {
		return nil, "missing"
	}
	target, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, "not a valid URL"
	case target.Scheme != "http" && target.Scheme != "https" || target.Hostname() == "":
		return nil, "must be an absolute http or https URL"
	case target.User != nil:
		return nil, "holds a user name; put it under auth.basic"
	case target.Fragment != "":
		return nil, "holds a fragment (#…), which is never sent"
	}
	return target, ""
}

func headerOf(headers map[string]string, name string) string {
	for k, v := range headers {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

// owned reports whether the sink, a format or the transport sets the header.
func owned(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "content-type", "content-length", "content-encoding", "transfer-encoding", "host", "expect",
		"connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade",
		headerID, headerTimestamp, headerSignature:
		return true
	}
	return strings.HasPrefix(name, sinks.AttributePrefix) || strings.HasPrefix(name, "kubeferry-")
}

// validName reports whether name is a token of RFC 9110.
func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !alnum && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return name != ""
}

// validValue reports whether value can stand in a header: no control character other than a tab.
func validValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// credentials are the files and values to authenticate with.
type credentials struct {
	basic                              *Basic
	token, password, current, previous *sinks.SecretFile // nil if not configured
	fixed                              private           // what else must not be shown
}

// secrets are the credentials at one moment.
type secrets struct {
	authorization string
	signing       [][]byte
	hidden        []string // whatever must not show in an error
	words         []string // nor these, where they stand alone
}

func newCredentials(c *Config) *credentials {
	creds := &credentials{fixed: confidential(c)}
	file := func(path string) *sinks.SecretFile {
		if path == "" {
			return nil
		}
		return sinks.NewSecretFile(path)
	}
	if c.Auth != nil {
		creds.token, creds.basic = file(c.Auth.BearerTokenFile), c.Auth.Basic
		if creds.basic != nil {
			creds.password = file(creds.basic.PasswordFile)
		}
	}
	if c.Signature != nil {
		creds.current, creds.previous = file(c.Signature.SecretFile), file(c.Signature.PreviousSecretFile)
	}
	return creds
}

// read returns the credentials as the files have them now.
func (c *credentials) read() (*secrets, error) {
	s := &secrets{hidden: slices.Clip(c.fixed.texts), words: c.fixed.words}
	if c.token != nil {
		token, _, err := c.token.Read()
		if err != nil {
			return nil, fmt.Errorf("auth.bearerTokenFile: %w", err)
		}
		if !validValue(string(token)) {
			return nil, errors.New("auth.bearerTokenFile: holds characters that a header cannot")
		}
		s.authorization = "Bearer " + string(token)
		s.hidden = append(s.hidden, string(token))
	}
	if c.basic != nil {
		password := []byte(c.basic.Password)
		if c.password != nil {
			var err error
			if password, _, err = c.password.Read(); err != nil {
				return nil, fmt.Errorf("auth.basic.passwordFile: %w", err)
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
	content, _, err := file.Read()
	if err != nil {
		return err
	}
	key := content
	if coded, ok := bytes.CutPrefix(content, []byte("whsec_")); ok {
		key, err = base64.StdEncoding.DecodeString(string(coded))
		if err != nil || len(key) == 0 {
			return errors.New("what follows whsec_ is not base64")
		}
		s.hidden = append(s.hidden, string(coded))
	}
	s.signing = append(s.signing, key)
	s.hidden = append(s.hidden, string(content))
	return nil
}
