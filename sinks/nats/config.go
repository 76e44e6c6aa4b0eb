// Package nats delivers records to NATS, to a JetStream stream or to plain subjects.
//
// # Connections
//
// A connection is never revived (nats.Options.AllowReconnect is false). When it is lost, the calls that wait for it fail. The next call
// makes a new connection, and reads every file with credentials or certificates again. nats.go's own reconnect has faults: a flush may be
// answered by another connection than the one that took the message, a refused login is not reported, a password file that cannot be read is
// not an error, and the public key of an nkey never changes.
//
// # JetStream
//
// A batch is published without waiting. Then it is flushed as with core NATS, since a missing permission has no acknowledgement. Then its
// acknowledgements are awaited. An early record may be refused (too large, stream full) and a later one stored, so a batch holds one record
// per key ([sinks.Limits.OnePerKey]). Nats-Msg-Id is the record's DedupID: what is sent again within the stream's duplicate window is
// acknowledged and not stored again.
//
// # Core NATS
//
// A PONG proves that the server has read what was sent before its PING over the same connection. It does not prove
// that the server let it pass: a missing permission is reported by an -ERR line before the PONG, which nats.go passes to
// a callback ([refusals]).
package nats

import (
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
	sinks.Common    `yaml:",inline"`
	sinks.Plaintext `yaml:",inline"`

	URLs         []string `yaml:"urls" doc:"required: servers, as nats://host:4222, tls://, ws:// or wss://"`
	Subject      string   `yaml:"subject" doc:"subject with placeholders"`
	JetStream    bool     `yaml:"jetstream" doc:"if true, a record is delivered when a stream has stored it. If false, it reaches whoever listens at that moment"`
	Stream       *Stream  `yaml:"stream" doc:"the JetStream stream to check, or to create"`
	CredsFile    string   `yaml:"credsFile" doc:"file with the JWT and the seed of a user"`
	NkeySeedFile string   `yaml:"nkeySeedFile" doc:"file with the seed of an nkey"`
	Username     string   `yaml:"username" doc:"user name"`
	Password     string   `yaml:"password" doc:"the password itself. passwordFile is better"`
	PasswordFile string   `yaml:"passwordFile" doc:"file with the password"`
	TokenFile    string   `yaml:"tokenFile" doc:"file with a token"`
	TLSFirst     bool     `yaml:"tlsFirst" doc:"begin the connection with TLS, for a server with handshake_first"`
	InboxPrefix  string   `yaml:"inboxPrefix" doc:"where acknowledgements come to: <prefix>.>. The default is _INBOX"`
	Domain       string   `yaml:"domain" doc:"domain of JetStream. The default is the domain of the server"`
}

// discardNew is what a full stream drops instead of old records.
const discardNew = "new"

// Stream are the keys of the stream section.
type Stream struct {
	Name       string        `yaml:"name" doc:"name of the stream. Without the section stream, any stream that takes the subject will do"`
	Create     bool          `yaml:"create" doc:"make the stream if it does not exist. One that exists is never changed"`
	Subjects   []string      `yaml:"subjects" doc:"subjects that the stream takes. The default is all that the sink can send to"`
	MaxAge     time.Duration `yaml:"maxAge" doc:"how long it keeps records. The default is for ever"`
	MaxBytes   sinks.Bytes   `yaml:"maxBytes" doc:"size at which the stream is full. By default there is no limit"`
	Discard    string        `yaml:"discard" enum:"old|new" doc:"what happens when the stream is full: it drops its oldest records (old), or refuses new ones, which then wait (new). The default is old"`
	Replicas   int           `yaml:"replicas" doc:"number of copies, from 1 to 5. The default is 1"`
	Duplicates time.Duration `yaml:"duplicates" doc:"how long it recognizes repetitions. The default is 10m"`
}

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
	hosts, secure, login, webSockets := c.validateURLs(&faults)
	c.validateSubject(&faults)
	c.validateLogin(&faults)
	faults.WarnIf(login && c.logins() > 0, "urls", "the credentials in a URL take precedence over the other keys")
	// Neither credsFile nor nkeySeedFile sends its secret.
	const instead = "set tls, or begin the URLs with tls://"
	switch {
	case secure || c.TLS != nil:
	case login || c.Username != "" || c.TokenFile != "":
		c.CheckCredentials(&faults, "urls", instead)
	default:
		sinks.CheckContent(&faults, "urls", instead, hosts...)
	}
	faults.FailIf(c.TLSFirst && !secure && c.TLS == nil, "tlsFirst", "needs TLS: set tls, or begin the URLs with tls://")
	faults.FailIf(c.TLSFirst && webSockets, "tlsFirst", "has no meaning with ws:// and wss://, where TLS is always first")
	faults.FailIf(c.InboxPrefix != "" && !literal(c.InboxPrefix), "inboxPrefix", "%q is no subject: tokens without wildcards and blanks, with a dot between them", c.InboxPrefix)
	faults.FailIf(c.Domain != "" && (!literal(c.Domain) || strings.Contains(c.Domain, ".")), "domain", "%q is no domain: it has neither dots nor wildcards nor blanks", c.Domain)
	faults.FailIf(c.Domain != "" && !c.JetStream, "domain", "has no meaning with jetstream: false")
	if c.Stream != nil {
		faults.FailIf(!c.JetStream, "stream", "has no meaning with jetstream: false")
		c.validateStream(&faults)
		return faults
	}
	faults.WarnIf(!c.JetStream, "jetstream",
		"without it nothing is stored: a record that nobody listens for at that moment is lost, and counts as delivered")
	return faults
}

// validateURLs returns the hosts, whether a URL demands TLS, whether one holds credentials, and whether they are WebSockets.
func (c *Config) validateURLs(faults *sinks.Faults) (hosts []string, secure, login, webSockets bool) {
	faults.FailIf(len(c.URLs) == 0, "urls", "at least one server is needed, such as nats://nats:4222")
	ws := 0
	for i, text := range c.URLs {
		u, err := parseURL(text)
		if err != nil {
			faults.Fail(fmt.Sprintf("urls[%d]", i), "%v", err)
			continue
		}
		hosts = append(hosts, u.Hostname())
		secure = secure || u.Scheme == "tls" || u.Scheme == "wss"
		login = login || u.User != nil
		if strings.HasPrefix(u.Scheme, "ws") {
			ws++
		}
	}
	faults.FailIf(ws > 0 && ws < len(c.URLs), "urls", "ws:// and wss:// cannot be mixed with the other schemes")
	return hosts, secure, login, ws > 0
}

func (c *Config) validateSubject(faults *sinks.Faults) {
	template := sinks.NewTemplate(c.Subject)
	if err := template.Check(); err != nil {
		faults.Fail("subject", "%v", err)
		return
	}
	literal := template.Literal()
	if i := strings.IndexFunc(literal, func(r rune) bool { return r != '.' && !literalRune(r) }); i >= 0 {
		faults.Fail("subject", "%q cannot hold %q", c.Subject, literal[i:i+1])
	}
	faults.FailIf(c.Subject == "", "subject", "a subject is needed")
	faults.FailIf(c.Subject != "" && slices.Contains(strings.Split(c.Subject, "."), ""), "subject",
		"%q has an empty token: a dot too many", c.Subject)
	faults.FailIf(strings.HasPrefix(c.Subject, "$") || strings.HasPrefix(c.Subject, "_INBOX."), "subject",
		"%q belongs to the server", c.Subject)
	faults.FailIf(len(c.Subject) > maxSubject, "subject", "is longer than %d bytes", maxSubject)
	faults.WarnIf(template.Uses("type"), "subject",
		"{type} sends the records of one object to different subjects: who reads only one misses changes, and a limit per subject keeps deleted objects")
}

// logins returns how many ways to log in are configured.
func (c *Config) logins() (n int) {
	for _, key := range []string{c.CredsFile, c.NkeySeedFile, c.Username, c.TokenFile} {
		if key != "" {
			n++
		}
	}
	return n
}

func (c *Config) validateLogin(faults *sinks.Faults) {
	password := c.Password != "" || c.PasswordFile != ""
	faults.FailIf(c.logins() > 1, "username", "set only one of credsFile, nkeySeedFile, username and tokenFile")
	faults.FailIf(c.Password != "" && c.PasswordFile != "", "password", "set either password or passwordFile")
	faults.FailIf(c.Username != "" && !password, "password", "username needs password or passwordFile")
	faults.FailIf(c.Username == "" && password, "username", "a password needs a username")
}

func (c *Config) validateStream(faults *sinks.Faults) {
	s := c.Stream
	faults.FailIf(s.Name == "", "stream.name", "the stream needs a name")
	faults.WarnIf(len(s.Subjects) > 0 && !covered(s.Subjects, c.Subject), "stream.subjects",
		"none of them takes all of %s", pattern(c.Subject))
	faults.WarnIf(0 < s.Duplicates && s.Duplicates < 2*time.Minute, "stream.duplicates",
		"what is sent again after %v is stored twice: make it longer than the longest outage to survive without doubles", s.Duplicates)
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
