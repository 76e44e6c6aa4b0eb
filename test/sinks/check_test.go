package sinks_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	natssink "github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

const wrongPassword = "n0t-th3-pa55w0rd"

// checkCase is a configuration, and what `kubeferry validate --connect` must find: nothing, or all these words.
type checkCase struct {
	name   string
	config sinks.Config
	says   []string
	warns  string // in the log
}

func (c *checkCase) run(t *testing.T) {
	t.Helper()
	var log lines
	sink, err := c.config.Open(t.Context(), sinks.Env{Name: "test", UserAgent: "kubeferry/test", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close(within(t, 5*time.Second)) }()
	start := time.Now()
	err = sink.(sinks.Checker).Check(within(t, 15*time.Second))
	t.Logf("after %v: %v", time.Since(start).Round(time.Millisecond), err)
	switch {
	case err == nil && c.says != nil:
		t.Errorf("got no error, want one that says %q", c.says)
	case err != nil && c.says == nil:
		t.Errorf("got %v", err)
	case err != nil:
		for _, part := range append(c.says, ": ") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("got %q, want it to say %q", err, part)
			}
		}
		if class := sinks.Classify(err); class.Permanent || class.Reason == sinks.ReasonOther {
			t.Errorf("got reason %s, permanent %t", class.Reason, class.Permanent)
		}
	}
	if !strings.Contains(log.String(), c.warns) {
		t.Errorf("want %q in the log:\n%s", c.warns, &log)
	}
	for _, secret := range []string{kafkaPassword, wrongPassword} {
		if err != nil && strings.Contains(err.Error(), secret) || strings.Contains(log.String(), secret) {
			t.Errorf("a password shows in %v or the log:\n%s", err, &log)
		}
	}
}

func testKafkaCheck(t *testing.T, broker *kafkaServer) {
	t.Helper()
	broker.AddrOf(elsewhere)
	otherCA, garbage := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "garbage")
	write(t, otherCA, sinktest.NewAuthority(t).PEM())
	write(t, garbage, []byte(wrongPassword+"\n"))
	broker.CreateTopic("there", 2)
	broker.CreateTopic("forbidden", 2)
	user := "User:" + kafkaUser
	broker.allow(t, user, kadm.OpCreate, "made-by-check")
	broker.allow(t, user, kadm.OpWrite, "made-by-check")
	broker.allow(t, user, kadm.OpWrite, "there")
	broker.awaitRight(t, "there", true)
	config := func(listener kafkatest.Listener, change func(*kafka.Config)) *kafka.Config {
		c := kafkaConfig("there", broker.AddrOf(listener))
		if listener != kafkatest.Plaintext {
			c.TLS = &sinks.TLS{CAFile: broker.caFile}
		}
		if listener == kafkatest.SASL {
			c.SASL = &kafka.SASL{Mechanism: "SCRAM-SHA-256", Username: kafkaUser, Password: kafkaPassword}
		}
		if change != nil {
			change(c)
		}
		return c
	}
	for _, c := range []checkCase{
		{name: "well", config: config(kafkatest.SASL, nil)},
		{name: "placeholders", config: config(kafkatest.SASL, func(c *kafka.Config) { c.Topic = "k8s.{group}.{resource}" })},
		{
			name: "no topic", config: config(kafkatest.Plaintext, func(c *kafka.Config) { c.Topic = "missing" }),
			says: []string{`topic "missing" does not exist`, "create it, or set createTopics"},
		},
		{name: "a topic to create", config: config(kafkatest.Plaintext, func(c *kafka.Config) { c.Topic, c.CreateTopics = "missing", true })},
		{
			name: "no right", config: config(kafkatest.SASL, func(c *kafka.Config) { c.Topic = "forbidden" }),
			says: []string{`topic "forbidden"`, "the user may describe and write"},
		},
		{
			name: "wrong password", config: config(kafkatest.SASL, func(c *kafka.Config) { c.SASL.Password = wrongPassword }),
			says: []string{"check sasl"},
		},
		{
			name: "another authority", config: config(kafkatest.SASL, func(c *kafka.Config) { c.TLS.CAFile = otherCA }),
			says: []string{"unknown authority", "check tls.caFile"},
		},
		{name: "no client certificate", config: config(kafkatest.MutualTLS, nil), says: []string{"tls.certFile"}},
		{
			name: "garbage in caFile", config: config(kafkatest.SASL, func(c *kafka.Config) { c.TLS.CAFile = garbage }),
			says: []string{"tls.caFile " + garbage},
		},
		{
			name: "garbage in certFile", config: config(kafkatest.MutualTLS, func(c *kafka.Config) { c.TLS.CertFile, c.TLS.KeyFile = garbage, garbage }),
			says: []string{"tls.certFile " + garbage},
		},
		{
			name: "no passwordFile", config: config(kafkatest.SASL, func(c *kafka.Config) { c.SASL.Password, c.SASL.PasswordFile = "", garbage+"x" }),
			says: []string{"sasl.passwordFile " + garbage + "x", "no such file"},
		},
		{name: "away", config: kafkaConfig("there", broker.nowhere), says: []string{broker.nowhere, "check brokers"}},
		{name: "no tls", config: config(kafkatest.SASL, func(c *kafka.Config) { c.TLS = nil }), says: []string{"check brokers", "tls"}},
		{name: "advertised elsewhere", config: config(elsewhere, nil), says: []string{broker.nowhere, "check advertised.listeners"}},
	} {
		t.Run(c.name, c.run)
	}
	if got := len(readAll(t, broker, "there")); got != 0 {
		t.Errorf("got %d records sent, want none", got)
	}
	record := []sinks.Record{sinktest.NewRecord("a", 1)}
	class := sinks.Classify(firstError(openSink(t, config(kafkatest.Plaintext, func(c *kafka.Config) { c.Topic = "missing" })).Deliver(t.Context(), record)))
	if class == nil || class.Reason != sinks.ReasonNotFound {
		t.Errorf("got %v, want the topic still to be missing", class)
	}
	// The rights that docs/nats.md lists are enough.
	deliverAll(t, openSink(t, config(kafkatest.SASL, nil)), record)
	deliverAll(t, openSink(t, config(kafkatest.SASL, func(c *kafka.Config) { c.Topic, c.CreateTopics = "made-by-check", true })), record)
}

func TestNATSCheck(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "ferry", Password: natsPassword},
			{Username: "blind", Password: natsPassword, Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"$JS.API.>"}},
			}},
		}
	})
	srv.Login(nats.UserInfo("ferry", natsPassword))
	srv.CreateStream(t.Context(), "THERE", "k8s.>")
	authority := sinktest.NewAuthority(t)
	otherCA := filepath.Join(t.TempDir(), "ca.pem")
	write(t, otherCA, sinktest.NewAuthority(t).PEM())
	secured := natstest.Start(t, func(o *server.Options) {
		o.TLSConfig, o.TLSTimeout = authority.ServerConfig("127.0.0.1"), 5
	})
	plain := natstest.Start(t, func(o *server.Options) { o.JetStream = false })
	nowhere := nobodyAt(t)
	garbage := filepath.Join(t.TempDir(), "garbage")
	write(t, garbage, []byte("SUA"+wrongPassword+"\n"))
	srv.CreateStreamWith(t.Context(), jetstream.StreamConfig{Name: "MUTE", Subjects: []string{"mute.>"}, NoAck: true})
	srv.CreateStreamWith(t.Context(), jetstream.StreamConfig{Name: "MEMORY", Subjects: []string{"memory.>"}, Storage: jetstream.MemoryStorage})
	config := func(change func(*natssink.Config)) *natssink.Config {
		c := natsConfig(hostOf(t, srv.URL()))
		c.Username, c.Password = "ferry", natsPassword
		if change != nil {
			change(c)
		}
		return c
	}
	stream := func(name string, create bool) func(*natssink.Config) {
		return func(c *natssink.Config) { c.Stream = &natssink.Stream{Name: name, Create: create} }
	}
	for _, c := range []checkCase{
		{name: "well", config: config(nil)},
		{name: "well, by name", config: config(stream("THERE", false))},
		{name: "a stream in memory", config: config(func(c *natssink.Config) { c.Subject = "memory.{name}" }), warns: "when its servers stop"},
		{name: "no stream of that name", config: config(stream("MISSING", false)), says: []string{`"MISSING" does not exist`, "stream.create"}},
		{name: "a stream to create", config: config(func(c *natssink.Config) {
			c.Subject, c.Stream = "free.{name}", &natssink.Stream{Name: "MISSING", Create: true}
		})},
		{
			name: "a stream that acknowledges nothing", config: config(func(c *natssink.Config) {
				c.Subject, c.Stream = "mute.{name}", &natssink.Stream{Name: "MUTE"}
			}),
			says: []string{`stream "MUTE" acknowledges nothing`, "set no_ack: false"},
		},
		{
			name: "a stream that acknowledges nothing, without its name", config: config(func(c *natssink.Config) { c.Subject = "mute.{name}" }),
			says: []string{`stream "MUTE" acknowledges nothing`, "set no_ack: false"},
		},
		{
			name: "garbage in credsFile", config: config(func(c *natssink.Config) { c.Username, c.Password, c.CredsFile = "", "", garbage }),
			says: []string{"credsFile " + garbage},
		},
		{
			name: "no credsFile", config: config(func(c *natssink.Config) { c.Username, c.Password, c.CredsFile = "", "", garbage+"x" }),
			says: []string{"credsFile " + garbage + "x", "no such file"},
		},
		{
			name: "garbage in nkeySeedFile", config: config(func(c *natssink.Config) { c.Username, c.Password, c.NkeySeedFile = "", "", garbage }),
			says: []string{"nkeySeedFile " + garbage},
		},
		{
			name: "no tokenFile", config: config(func(c *natssink.Config) { c.Username, c.Password, c.TokenFile = "", "", garbage+"x" }),
			says: []string{"tokenFile " + garbage + "x", "no such file"},
		},
		{
			name: "garbage in caFile", config: config(func(c *natssink.Config) { c.TLS = &sinks.TLS{CAFile: garbage} }),
			says: []string{"tls.caFile " + garbage},
		},
		{
			name: "no stream for the subject", config: config(func(c *natssink.Config) { c.Subject = "other.{name}" }),
			says: []string{"no stream takes the subject other.*", "create"},
		},
		{
			name: "a stream for other subjects", config: config(func(c *natssink.Config) {
				c.Subject, c.Stream = "other.{name}", &natssink.Stream{Name: "THERE"}
			}),
			says: []string{`stream "THERE" takes k8s.> and not the subject other.*`},
		},
		{name: "core", config: config(func(c *natssink.Config) { c.JetStream = false })},
		{name: "no right to look", config: config(func(c *natssink.Config) { c.Username = "blind" }), warns: "cannot be checked"},
		{name: "no JetStream", config: natsConfig(hostOf(t, plain.URL())), says: []string{"JetStream is not enabled"}},
		{name: "wrong password", config: config(func(c *natssink.Config) { c.Password = wrongPassword }), says: []string{"check credsFile"}},
		{name: "away", config: natsConfig(nowhere), says: []string{"check urls"}},
		{
			name: "another authority", config: func() sinks.Config {
				c := natsConfig(hostOf(t, secured.URL()))
				c.TLS = &sinks.TLS{CAFile: otherCA}
				return c
			}(),
			says: []string{"check tls.caFile"},
		},
		{
			name: "no TLS there", config: config(func(c *natssink.Config) { c.TLS = &sinks.TLS{} }), says: []string{"secure connection not available", "check urls and tls"},
		},
	} {
		t.Run(c.name, c.run)
	}
	if messages := readStream(t, srv, "THERE"); len(messages) != 0 {
		t.Errorf("got %d messages sent, want none", len(messages))
	}
	none := config(stream("MISSING", false))
	none.Subject = "free.{name}"
	if err := openSink(t, none).(sinks.Checker).Check(within(t, 15*time.Second)); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("got %v, want no stream made by a check", err)
	}
}

// nobodyAt returns an address that refuses connections.
func nobodyAt(t *testing.T) string {
	t.Helper()
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	return freeport.Addr(port)
}
