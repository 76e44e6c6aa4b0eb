package sinks_test

import (
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/kubeferry/kubeferry/sinks"
	natssink "github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

// natsWay is one way to log in. It has two generations, 0 and 1, of its secret.
type natsWay struct {
	name   string
	server func(o *server.Options, generation int)
	sink   func(c *natssink.Config, dir string)
	files  func(dir string, generation int) // of the sink, but for its ca.pem
	reader func(generation int) []nats.Option
}

func natsWays(t *testing.T, authorities [2]*sinktest.Authority) []natsWay {
	passwords := [2]string{natsPassword, "an0th3r-pa55w0rd"}
	secretFile := func(dir string) string { return filepath.Join(dir, "secret") }
	nobody := func(string, int) {}
	nkey := [2]nkeys.KeyPair{newNkey(t, nkeys.CreateUser), newNkey(t, nkeys.CreateUser)}
	accounts := newOperator(t)
	clientCert := func(dir string, generation int) {
		cert, key := authorities[generation].Issue("ferry")
		write(t, filepath.Join(dir, "client.pem"), cert)
		write(t, filepath.Join(dir, "client.key"), key)
	}
	return []natsWay{
		{
			name:   "tls",
			server: func(*server.Options, int) {},
			sink:   func(*natssink.Config, string) {},
			files:  nobody,
		},
		{
			name: "mutual tls",
			server: func(o *server.Options, generation int) {
				o.TLSConfig.ClientAuth, o.TLSConfig.ClientCAs = tls.RequireAndVerifyClientCert, authorities[generation].Pool()
				o.TLSVerify = true
			},
			sink: func(c *natssink.Config, dir string) {
				c.TLS.CertFile, c.TLS.KeyFile = filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
			},
			files: clientCert,
			reader: func(generation int) []nats.Option {
				dir := t.TempDir()
				clientCert(dir, generation)
				return []nats.Option{nats.ClientCert(filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key"))}
			},
		},
		{
			name:   "user and password",
			server: func(o *server.Options, generation int) { o.Username, o.Password = natsUser, passwords[generation] },
			sink:   func(c *natssink.Config, dir string) { c.Username, c.PasswordFile = natsUser, secretFile(dir) },
			files:  func(dir string, generation int) { write(t, secretFile(dir), []byte(passwords[generation]+"\n")) },
			reader: func(generation int) []nats.Option {
				return []nats.Option{nats.UserInfo(natsUser, passwords[generation])}
			},
		},
		{
			name:   "token",
			server: func(o *server.Options, generation int) { o.Authorization = passwords[generation] },
			sink:   func(c *natssink.Config, dir string) { c.TokenFile = secretFile(dir) },
			files:  func(dir string, generation int) { write(t, secretFile(dir), []byte(passwords[generation]+"\n")) },
			reader: func(generation int) []nats.Option { return []nats.Option{nats.Token(passwords[generation])} },
		},
		{
			name: "nkey",
			server: func(o *server.Options, generation int) {
				o.Nkeys = []*server.NkeyUser{{Nkey: publicKey(t, nkey[generation])}}
			},
			sink:  func(c *natssink.Config, dir string) { c.NkeySeedFile = secretFile(dir) },
			files: func(dir string, generation int) { write(t, secretFile(dir), seed(t, nkey[generation])) },
			reader: func(generation int) []nats.Option {
				return []nats.Option{nats.Nkey(publicKey(t, nkey[generation]), nkey[generation].Sign)}
			},
		},
		{
			name:   "credentials file",
			server: accounts.configure,
			sink:   func(c *natssink.Config, dir string) { c.CredsFile = secretFile(dir) },
			files:  func(dir string, generation int) { write(t, secretFile(dir), accounts.credentials(generation)) },
			reader: func(generation int) []nats.Option {
				return []nats.Option{nats.UserCredentialBytes(accounts.credentials(generation))}
			},
		},
	}
}

// TestNATSLogins goes into a server each way. Then the server gets another authority and takes other credentials: the
// sink, still open, is kept out until its files follow.
func TestNATSLogins(t *testing.T) {
	authorities := [2]*sinktest.Authority{sinktest.NewAuthority(t), sinktest.NewAuthority(t)}
	for _, way := range natsWays(t, authorities) {
		t.Run(way.name, func(t *testing.T) {
			configure := func(generation int) func(*server.Options) {
				return func(o *server.Options) {
					o.TLSConfig, o.TLSTimeout = authorities[generation].ServerConfig("127.0.0.1"), 5
					way.server(o, generation)
				}
			}
			srv := natstest.Start(t, configure(0))
			login := func(generation int) {
				options := []nats.Option{nats.Secure(&tls.Config{RootCAs: authorities[generation].Pool()})}
				if way.reader != nil {
					options = append(options, way.reader(generation)...)
				}
				srv.Login(options...)
			}
			login(0)
			srv.CreateStream(t.Context(), "LOGINS", "k8s.>")

			dir := t.TempDir()
			caFile := filepath.Join(dir, "ca.pem")
			write(t, caFile, authorities[0].PEM())
			way.files(dir, 0)
			config := natsConfig(hostOf(t, srv.URL()))
			config.TLS = &sinks.TLS{CAFile: caFile}
			way.sink(config, dir)
			sink := openSink(t, config)
			record := func(n int) []sinks.Record { return []sinks.Record{sinktest.NewRecord("a", n)} }
			if err := sink.Deliver(t.Context(), record(1)); err != nil {
				t.Fatal(firstError(err))
			}

			srv.Reconfigure(configure(1))
			login(1)
			deliverUntil(t, sink, record(2), func(class *sinks.Error) bool {
				return class.Reason == sinks.ReasonUnreachable && strings.Contains(class.Error(), "unknown authority")
			})
			write(t, caFile, authorities[1].PEM())
			if way.reader != nil {
				deliverUntil(t, sink, record(2), func(class *sinks.Error) bool { return class.Reason == sinks.ReasonUnauthorized })
				way.files(dir, 1)
			}
			t.Logf("delivered %v after the files were right", deliverAll(t, sink, record(2)))
			messages, err := srv.ReadAll(within(t, 20*time.Second), "LOGINS")
			if err != nil || len(messages) != 2 {
				t.Errorf("got %d messages and %v, want 2", len(messages), err)
			}
		})
	}
}

// operator is a NATS operator with a system account and one account with JetStream and two users. The server of the
// second generation has the first user revoked.
type operator struct {
	t                        *testing.T
	operator, system, tenant nkeys.KeyPair
	users                    [2]nkeys.KeyPair
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	return &operator{
		t: t, operator: newNkey(t, nkeys.CreateOperator), system: newNkey(t, nkeys.CreateAccount), tenant: newNkey(t, nkeys.CreateAccount),
		users: [2]nkeys.KeyPair{newNkey(t, nkeys.CreateUser), newNkey(t, nkeys.CreateUser)},
	}
}

func (o *operator) configure(options *server.Options, generation int) {
	o.t.Helper()
	claims := jwt.NewOperatorClaims(publicKey(o.t, o.operator))
	claims.SystemAccount = publicKey(o.t, o.system)
	options.TrustedOperators = []*jwt.OperatorClaims{claims}
	options.SystemAccount = claims.SystemAccount

	tenant := jwt.NewAccountClaims(publicKey(o.t, o.tenant))
	tenant.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	if generation == 1 {
		tenant.RevokeAt(publicKey(o.t, o.users[0]), time.Now().Add(time.Minute))
	}
	resolver := &server.MemAccResolver{}
	for _, account := range []*jwt.AccountClaims{jwt.NewAccountClaims(claims.SystemAccount), tenant} {
		text, err := account.Encode(o.operator)
		if err == nil {
			err = resolver.Store(account.Subject, text)
		}
		if err != nil {
			o.t.Fatal(err)
		}
	}
	options.AccountResolver = resolver
}

// credentials is what `nsc generate creds` writes for a user.
func (o *operator) credentials(generation int) []byte {
	o.t.Helper()
	user := o.users[generation]
	token, err := jwt.NewUserClaims(publicKey(o.t, user)).Encode(o.tenant)
	if err != nil {
		o.t.Fatal(err)
	}
	file, err := jwt.FormatUserConfig(token, seed(o.t, user))
	if err != nil {
		o.t.Fatal(err)
	}
	return file
}

func newNkey(t *testing.T, create func() (nkeys.KeyPair, error)) nkeys.KeyPair {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func publicKey(t *testing.T, pair nkeys.KeyPair) string {
	t.Helper()
	key, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func seed(t *testing.T, pair nkeys.KeyPair) []byte {
	t.Helper()
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return seed
}
