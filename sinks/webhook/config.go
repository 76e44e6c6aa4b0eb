// Package webhook delivers records by HTTP, signed as Standard Webhooks specifies if a secret is given.
package webhook

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http/httpproxy"

	"github.com/kubeferry/kubeferry/sinks"
)

// Kind is the entry of this sink in the registry.
func Kind() sinks.Kind {
	return sinks.Kind{Name: "webhook", New: func() sinks.Config { return NewConfig() }}
}

// Config is the section of the configuration file.
type Config struct {
	Batch           Batch         `yaml:"batch" doc:"how records are gathered into one request"`
	Concurrency     int           `yaml:"concurrency" doc:"how many batches are under way at the same time"`
	Timeout         time.Duration `yaml:"timeout" doc:"longest time that a batch may take"`
	TLS             *sinks.TLS    `yaml:"tls" doc:"TLS; {} for the defaults"`
	sinks.Plaintext `yaml:",inline"`

	URL         string            `yaml:"url" doc:"required: an http or https URL"`
	Method      string            `yaml:"method" enum:"POST|PUT|PATCH" doc:"method of the requests"`
	Headers     map[string]string `yaml:"headers" doc:"headers of each request"`
	Auth        *Auth             `yaml:"auth" doc:"how to authenticate"`
	Signature   *Signature        `yaml:"signature" doc:"sign each request as Standard Webhooks do"`
	Compression string            `yaml:"compression" enum:"none|gzip" doc:"compression of the body"`
	// After a status in PermanentStatuses a single record becomes a dead letter. An array is sent again in halves.
	PermanentStatuses []int `yaml:"permanentStatuses" doc:"statuses by which the receiver says that it can never take a record. Your list replaces the default, which is 400, 413, 415 and 422"`
	// Success and Permanent are expressions over the answer; see condition.
	Success   string `yaml:"success" doc:"CEL condition about status, headers and body of the answer: true if the records are delivered. Without it, the statuses 200 to 299 mean that"`
	Permanent string `yaml:"permanent" doc:"CEL condition about status, headers and body of an answer that does not mean delivered: true if some record of the request can never be. Then the request is sent again in halves, until that record is alone and becomes a dead letter. Evaluated beside permanentStatuses"`
}

// Batch limits the size of a request, and says how the records stand in it.
type Batch struct {
	sinks.Batch `yaml:",inline"`
	Framing     string `yaml:"framing" enum:"array|ndjson|none" doc:"how the records of a request are put together: as a JSON array, a line for each, or one record as it is. The default is none with maxRecords: 1, and else array"`
}

// What Framing can be.
const (
	framingArray  = "array"
	framingNDJSON = "ndjson"
	framingNone   = "none"
)

// framing returns how records stand in a request.
func (c *Config) framing() string {
	switch {
	case c.Batch.Framing != "":
		return c.Batch.Framing
	case c.Batch.MaxRecords > 1:
		return framingArray
	default:
		return framingNone
	}
}

// common returns the keys that every sink has.
func (c *Config) common() *sinks.Common {
	return &sinks.Common{Batch: c.Batch.Batch, Concurrency: c.Concurrency, Timeout: c.Timeout, TLS: c.TLS}
}

// Auth holds one way to authenticate.
type Auth struct {
	BearerTokenFile string        `yaml:"bearerTokenFile" doc:"file with a token for the Authorization header"`
	Basic           *Basic        `yaml:"basic" doc:"user name and password"`
	OAuth2          *sinks.OAuth2 `yaml:"oauth2" doc:"where to get a token for the Authorization header"`
}

// Basic is HTTP basic authentication.
type Basic struct {
	Username     string `yaml:"username" doc:"user name"`
	Password     string `yaml:"password" doc:"the password itself. passwordFile is better"`
	PasswordFile string `yaml:"passwordFile" doc:"file with the password"`
}

// Signature names the files of the signing secrets, each in base64, with or without whsec_ in front.
type Signature struct {
	SecretFile         string `yaml:"secretFile" doc:"file with the secret in base64, with or without whsec_ in front"`
	PreviousSecretFile string `yaml:"previousSecretFile" doc:"file with the old secret. While this file exists, requests have a signature of each secret"`
}

const compressionGzip = "gzip"

// NewConfig returns the defaults. Each record is a request of its own, because that is what most receivers expect:
// with batch.maxRecords over 1 every body is a JSON array.
func NewConfig() *Config {
	return &Config{
		Batch:       Batch{Batch: sinks.Batch{MaxRecords: 1, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond}},
		Concurrency: 8,
		Timeout:     10 * time.Second,
		Method:      http.MethodPost,
		Compression: "none",
		PermanentStatuses: []int{
			http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
		},
	}
}

// Limits implements [sinks.Config].
func (c *Config) Limits() sinks.Limits {
	limits := c.common().Limits()
	limits.LosesHeaders = c.framing() != framingNone
	return limits
}

// Validate implements [sinks.Config].
func (c *Config) Validate() []sinks.Fault {
	faults := sinks.Faults(c.common().Validate())
	faults.FailIf(c.framing() == framingNone && c.Batch.MaxRecords > 1, "batch.framing", "none sends one record in a request: set batch.maxRecords: 1")
	for _, expression := range [][2]string{{"success", c.Success}, {"permanent", c.Permanent}} {
		_, err := newCondition(expression[1])
		faults.FailIf(err != nil, expression[0], "%v", err)
	}
	target, fault := parseURL(c.URL)
	faults.FailIf(fault != "", "url", "%s", fault)
	names := slices.Sorted(maps.Keys(c.Headers))
	for i, name := range names {
		value := c.Headers[name]
		same := slices.IndexFunc(names, func(other string) bool { return strings.EqualFold(other, name) })
		switch path := "headers." + name; {
		case !httpguts.ValidHeaderFieldName(name):
			faults.Fail(path, "not a valid header name")
		case !httpguts.ValidHeaderFieldValue(value):
			faults.Fail(path, "the value holds characters that a header cannot")
		case owned(name):
			faults.Fail(path, "kubeferry sets this header itself")
		case c.Auth != nil && isAuthorization(name):
			faults.Fail(path, "auth sets this header")
		case same < i:
			faults.Fail(path, "this is %s again: upper and lower case make no difference", names[same])
		}
	}
	for i, status := range c.PermanentStatuses {
		path := fmt.Sprintf("permanentStatuses[%d]", i)
		switch reason := reasonOf(status); {
		case status < 400 || status > 599:
			faults.Fail(path, "must be a status from 400 to 599: others are no refusal")
		case reason != sinks.ReasonTooLarge && reason != sinks.ReasonRejected && reason != sinks.ReasonOther:
			faults.Warn(path, "the status %d usually means that the receiver or this configuration is wrong, and not a record: until that is corrected, records become dead letters", status)
		}
	}
	c.Auth.validate(&faults, &c.Plaintext)
	if s := c.Signature; s != nil && s.SecretFile == "" {
		faults.Fail("signature.secretFile", "missing")
	} else if s != nil {
		checkSecret(&faults, "signature.secretFile", s.SecretFile)
		checkSecret(&faults, "signature.previousSecretFile", s.PreviousSecretFile)
	}
	if target != nil {
		plain := target.Scheme == "http"
		named := slices.AppendSeq(names, maps.Keys(target.Query()))
		const instead = "begin it with https://"
		switch proxy, err := httpproxy.FromEnvironment().ProxyFunc()(target); {
		case plain && (c.Auth != nil || slices.ContainsFunc(named, isCredential)):
			c.CheckCredentials(&faults, "url", instead)
		case err == nil && proxy != nil && proxy.User != nil && proxy.Scheme != "https":
			c.CheckCredentials(&faults, "url", "the proxy for it, from the environment, has a login: begin its URL with https://")
		case plain:
			sinks.CheckContent(&faults, "url", instead, target.Hostname())
		}
		faults.WarnIf(plain && c.TLS != nil, "tls", "has no effect: url is plain http")
	}
	return faults
}

// isCredential reports whether a header or parameter of that name holds a credential. A value does not show it: ${…} has cluster names
// and addresses, too. The name is compared word by word: X-Api-Key and apiKey hold one, and X-Author, X-Design and monkey do not.
func isCredential(name string) bool {
	name = wordBreak.ReplaceAllString(name, "$1 $2")
	return slices.ContainsFunc(notLetters.Split(strings.ToLower(name), -1), credentialWord.MatchString)
}

var (
	wordBreak  = regexp.MustCompile(`([a-z])([A-Z])`)
	notLetters = regexp.MustCompile(`[^a-z]+`)
	// credentialWord also takes the usual compounds that are written as one word, such as apikey, authtoken and sessionid.
	credentialWord = regexp.MustCompile(`^(access|api|app|auth|client|csrf|id|license|private|refresh|secret|session|shared|xsrf)?` +
		`(auth|authentication|authorization|cookie|credentials?|jwt|key|pass|passphrase|passwd|password|pw|pwd|secret|session|sessionid|sid|sig|signature|token)s?$`)
)

// leastSecret is the least that Standard Webhooks requires of a secret: 24 to 64 random bytes.
const leastSecret = 24

// checkSecret looks at a signing secret that is there. One that is not need not be where the file is validated.
func checkSecret(faults *sinks.Faults, key, file string) {
	if file == "" {
		return
	}
	var s secrets
	switch err := s.addKey(key, file); {
	case errors.Is(err, errNotBase64):
		faults.Fail(key, "%v", errNotBase64)
	case err == nil && len(s.signing[0]) < leastSecret:
		faults.Warn(key, "the secret has fewer than the %d bytes that Standard Webhooks requires: make one by openssl rand -base64 32", leastSecret)
	}
}

func (a *Auth) validate(faults *sinks.Faults, plain *sinks.Plaintext) {
	if a == nil {
		return
	}
	ways := 0
	for _, set := range []bool{a.BearerTokenFile != "", a.Basic != nil, a.OAuth2 != nil} {
		if set {
			ways++
		}
	}
	faults.FailIf(ways != 1, "auth", "set one of bearerTokenFile, basic and oauth2")
	if a.OAuth2 != nil {
		a.OAuth2.Validate(faults, "auth.oauth2", plain)
	}
	if a.Basic == nil {
		return
	}
	b := a.Basic
	faults.FailIf(b.Username == "" || strings.Contains(b.Username, ":"), "auth.basic.username", "must be set, and cannot hold a colon")
	faults.FailIf((b.Password == "") == (b.PasswordFile == ""), "auth.basic", "set one of password and passwordFile")
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

func isAuthorization(name string) bool { return strings.EqualFold(name, "Authorization") }

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
