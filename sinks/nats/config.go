// Package nats delivers records to NATS, to a JetStream stream or to plain subjects.
//
// # One connection, one life
//
// nats.go can reconnect by itself. Then a publish may go into a buffer that the next connection sends or drops, a
// flush may be answered by another connection than the one that took the message, and pending acknowledgements fail
// some time later. It also keeps the public key of an nkey for ever, its callbacks for passwords and tokens cannot fail,
// and it does not report why a login after the first was refused. So a connection is never revived here
// (nats.Options.AllowReconnect is false): when one is lost, the calls that wait on it fail, and the next Deliver call makes a
// new one. That reads every credentials and TLS file anew, has no buffer to overrun, and the pipeline's backoff is the
// only one.
//
// # JetStream
//
// A batch is published without waiting, then flushed as to core NATS, since a missing permission has no acknowledgement,
// and then its acknowledgements are awaited. An early record may be refused (too
// large, stream full) and a later one stored, so a batch holds one record per key ([sinks.Limits.OnePerKey]).
// Nats-Msg-Id is the record's DedupID: what is sent again within the stream's duplicate window is acknowledged and
// not stored again. nats.go's own retries after "no responders" are switched off.
//
// # Core NATS
//
// A PONG proves that the server has read what was sent before its PING over the same connection. It does not prove
// that the server let it pass: a missing permission is reported by an -ERR line that comes before the PONG, but
// reaches the program through a callback ([refusals]). Nobody stores anything; a record that no subscriber listens
// for is gone.
//
// # Sizes and characters
//
// max_payload counts body and headers. A subject is a control line of at most 4,096 bytes, over which the server
// closes the connection, so its length is checked here. In the values of placeholders everything but visible ASCII,
// and '.', '*', '>' and '$', becomes '_' (ADR-6, naming rules).
package nats

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

var _ sinks.Config = (*Config)(nil)

// Config is the nats section of a sink.
type Config struct {
	sinks.Common `yaml:",inline"`

	URLs         []string `yaml:"urls" doc:"servers to connect to: nats://host:4222, tls://, ws:// or wss://"`
	Subject      string   `yaml:"subject" doc:"subject, with placeholders such as {namespace} and {name}"`
	JetStream    bool     `yaml:"jetstream" doc:"wait until a stream has stored each record; without it records reach who is listening, or nobody"`
	Stream       *Stream  `yaml:"stream" doc:"the JetStream stream to check, or to create"`
	CredsFile    string   `yaml:"credsFile" doc:"credentials file with a user's JWT and seed; files are read again for each connection"`
	NkeySeedFile string   `yaml:"nkeySeedFile" doc:"file with the seed of an nkey to log in with"`
	Username     string   `yaml:"username" doc:"name to log in with"`
	Password     string   `yaml:"password" doc:"password to log in with"`
	PasswordFile string   `yaml:"passwordFile" doc:"file with the password to log in with"`
	TokenFile    string   `yaml:"tokenFile" doc:"file with the token to log in with"`
}

// Stream are the keys of the stream section.
type Stream struct {
	Name       string        `yaml:"name" doc:"name of the stream"`
	Create     bool          `yaml:"create" doc:"create the stream if it does not exist; an existing one is never changed"`
	Subjects   []string      `yaml:"subjects" doc:"subjects it takes; default: all that the sink can send to"`
	MaxAge     time.Duration `yaml:"maxAge" doc:"how long it keeps records; default: for ever"`
	MaxBytes   sinks.Bytes   `yaml:"maxBytes" doc:"size over which it drops the oldest records; default: no bound"`
	Replicas   int           `yaml:"replicas" doc:"how many servers keep a copy, 1 to 5; default 1"`
	Duplicates time.Duration `yaml:"duplicates" doc:"how long it recognizes a record that is sent again; default 10m"`
}

const defaultDuplicates = 10 * time.Minute

// Kind is the entry of this sink in the registry.
func Kind() sinks.Kind {
	return sinks.Kind{Name: "nats", New: func() sinks.Config { return NewConfig() }}
}

// NewConfig returns a configuration with its defaults.
func NewConfig() *Config {
	return &Config{
		Common: sinks.Common{
			Batch:       sinks.Batch{MaxRecords: 500, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond},
			Concurrency: 4,
			Timeout:     10 * time.Second,
		},
		Subject:   "k8s.{cluster}.{group}.{resource}.{namespace}.{name}",
		JetStream: true,
	}
}

// Limits implements [sinks.Config].
func (c *Config) Limits() sinks.Limits {
	limits := c.Common.Limits()
	limits.OnePerKey = true
	return limits
}

// Validate implements [sinks.Config].
func (c *Config) Validate() []sinks.Fault {
	faults := sinks.Faults(c.Common.Validate())
	secure := c.TLS != nil
	if len(c.URLs) == 0 {
		faults.Fail("urls", "at least one server is needed, such as nats://nats:4222")
	}
	schemes := map[bool]bool{}
	inURL := false
	for i, text := range c.URLs {
		u, err := parseURL(text)
		if err != nil {
			faults.Fail(fmt.Sprintf("urls[%d]", i), "%v", err)
			continue
		}
		secure = secure || u.Scheme == "tls" || u.Scheme == "wss"
		schemes[u.Scheme == "ws" || u.Scheme == "wss"] = true
		inURL = inURL || u.User != nil
	}
	if len(schemes) > 1 {
		faults.Fail("urls", "ws:// and wss:// cannot be mixed with the other schemes")
	}
	c.validateSubject(&faults)
	c.validateLogin(&faults)
	if inURL && c.login() > 0 {
		faults.Warn("urls", "the credentials in a URL take precedence over the other keys")
	}
	if (inURL || c.Username != "" || c.TokenFile != "") && !secure {
		faults.Warn("tls", "unless the server asks for TLS, the password or token is sent in the clear")
	}

	switch {
	case c.Stream != nil && !c.JetStream:
		faults.Fail("stream", "has no meaning with jetstream: false")
	case c.Stream != nil:
		c.validateStream(&faults)
	case !c.JetStream:
		faults.Warn("jetstream", "without it nothing is stored: a record that nobody listens for at that moment is lost, and counts as delivered")
	}
	return faults
}

func (c *Config) validateSubject(faults *sinks.Faults) {
	template, err := sinks.ParseTemplate(c.Subject)
	switch {
	case err != nil:
		faults.Fail("subject", "%v", err)
		return
	case c.Subject == "":
		faults.Fail("subject", "a subject is needed")
		return
	}
	for _, literal := range template.Literals() {
		if i := strings.IndexFunc(literal, func(r rune) bool { return r != '.' && !literalRune(r) }); i >= 0 {
			faults.Fail("subject", "%q cannot hold %q", c.Subject, literal[i:i+1])
			return
		}
	}
	if slices.Contains(strings.Split(c.Subject, "."), "") {
		faults.Fail("subject", "%q has an empty token: a dot too many", c.Subject)
	}
	if strings.HasPrefix(c.Subject, "$") || strings.HasPrefix(c.Subject, "_INBOX.") {
		faults.Fail("subject", "%q belongs to the server", c.Subject)
	}
	if len(c.Subject) > maxSubject {
		faults.Fail("subject", "is longer than %d bytes", maxSubject)
	}
	if template.Uses("type") {
		faults.Warn("subject", "{type} sends the records of one object to different subjects: who reads only one misses changes, and a limit per subject keeps deleted objects")
	}
}

// login returns how many ways to log in are configured.
func (c *Config) login() int {
	n := 0
	for _, set := range []bool{c.CredsFile != "", c.NkeySeedFile != "", c.Username != "", c.TokenFile != ""} {
		if set {
			n++
		}
	}
	return n
}

func (c *Config) validateLogin(faults *sinks.Faults) {
	if c.login() > 1 {
		faults.Fail("username", "set only one of credsFile, nkeySeedFile, username and tokenFile")
	}
	switch {
	case c.Password != "" && c.PasswordFile != "":
		faults.Fail("password", "set either password or passwordFile")
	case c.Username != "" && c.Password == "" && c.PasswordFile == "":
		faults.Fail("password", "username needs password or passwordFile")
	case c.Username == "" && (c.Password != "" || c.PasswordFile != ""):
		faults.Fail("username", "a password needs a username")
	}
}

func (c *Config) validateStream(faults *sinks.Faults) {
	s := c.Stream
	if s.Name == "" {
		faults.Fail("stream.name", "the stream needs a name")
	} else if strings.ContainsAny(s.Name, " \t\r\n.*>/\\") {
		faults.Fail("stream.name", "%q cannot hold blanks, '.', '*', '>', '/' or '\\'", s.Name)
	}
	for i, subject := range s.Subjects {
		if err := checkFilter(subject); err != nil {
			faults.Fail(fmt.Sprintf("stream.subjects[%d]", i), "%v", err)
		}
	}
	if len(s.Subjects) > 0 && !covered(s.Subjects, c.Subject) {
		faults.Warn("stream.subjects", "none of them takes all of %s", pattern(c.Subject))
	}
	if s.MaxAge < 0 {
		faults.Fail("stream.maxAge", "must not be negative")
	}
	if s.MaxBytes < 0 {
		faults.Fail("stream.maxBytes", "must not be negative")
	}
	if s.Replicas < 0 || s.Replicas > 5 {
		faults.Fail("stream.replicas", "must be 1 to 5")
	}
	switch {
	case s.Duplicates < 0 || 0 < s.Duplicates && s.Duplicates < 100*time.Millisecond:
		faults.Fail("stream.duplicates", "must be at least 100ms")
	case s.MaxAge > 0 && s.Duplicates > s.MaxAge:
		faults.Fail("stream.duplicates", "must not be longer than maxAge")
	case 0 < s.Duplicates && s.Duplicates < 2*time.Minute:
		faults.Warn("stream.duplicates", "what is sent again after %v is stored twice: make it longer than the longest outage to survive without doubles", s.Duplicates)
	}
}

// duplicates is the window to configure: 10m unless set, and never longer than maxAge, which the server refuses.
func (s *Stream) duplicates() time.Duration {
	window := s.Duplicates
	if window == 0 {
		window = defaultDuplicates
	}
	if s.MaxAge > 0 {
		window = min(window, s.MaxAge)
	}
	return window
}

// parseURL parses as nats.go does: the scheme may be missing. Its errors do not quote the text, which may hold a
// password.
func parseURL(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "nats://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("is not a URL such as nats://nats:4222")
	case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme):
		return nil, fmt.Errorf("has the scheme %q; there are nats, tls, ws and wss", u.Scheme)
	case u.Hostname() == "":
		return nil, fmt.Errorf("names no host")
	default:
		return u, nil
	}
}

// Open implements [sinks.Config]. It starts to connect, and does not wait for it.
func (c *Config) Open(_ context.Context, env sinks.Env) (sinks.Sink, error) {
	return open(c, env)
}
