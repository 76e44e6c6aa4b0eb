package sinks_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

// kafkaLogin is one way into a broker, with the files that it takes.
type kafkaLogin struct {
	name     string
	listener kafkatest.Listener
	sink     sinks.Sink
	dir      string
	password bool // else a certificate
}

func kafkaLogins() []*kafkaLogin {
	return []*kafkaLogin{
		{name: "tls", listener: kafkatest.TLS},
		{name: "mutual tls", listener: kafkatest.MutualTLS},
		{name: "PLAIN", listener: kafkatest.SASL, password: true},
		{name: "SCRAM-SHA-256", listener: kafkatest.SASL, password: true},
		{name: "SCRAM-SHA-512", listener: kafkatest.SASL, password: true},
	}
}

func (l *kafkaLogin) config(topic, address string) *kafka.Config {
	c := kafkaConfig(topic, address)
	c.TLS = &sinks.TLS{CAFile: filepath.Join(l.dir, "ca.pem")}
	if l.listener == kafkatest.MutualTLS {
		c.TLS.CertFile, c.TLS.KeyFile = filepath.Join(l.dir, "client.pem"), filepath.Join(l.dir, "client.key")
	}
	if l.password {
		c.SASL = &kafka.SASL{Mechanism: l.name, Username: kafkaUser, PasswordFile: filepath.Join(l.dir, "password")}
	}
	return c
}

// write puts into the files what the broker expects.
func (l *kafkaLogin) write(t *testing.T, authority *sinktest.Authority, password string) {
	t.Helper()
	cert, key := authority.Issue("ferry")
	write(t, filepath.Join(l.dir, "ca.pem"), authority.PEM())
	write(t, filepath.Join(l.dir, "client.pem"), cert)
	write(t, filepath.Join(l.dir, "client.key"), key)
	write(t, filepath.Join(l.dir, "password"), []byte(password+"\n"))
}

// testKafkaLogins goes into Apache Kafka each way. Then the broker gets another authority, another certificate and
// another password: the sinks, still open, are kept out until their files follow.
func testKafkaLogins(t *testing.T, broker *kafkaServer) {
	t.Helper()
	broker.AddrOf(kafkatest.TLS)
	authority, next := broker.authority, sinktest.NewAuthority(t)
	second := brokerSecrets(next, "an0th3r-pa55w0rd")
	broker.CreateTopic("logins", 1)
	for _, principal := range []string{"User:" + kafkaUser, "User:CN=ferry"} {
		broker.allow(t, principal, kadm.OpWrite, "logins")
	}
	broker.awaitRight(t, "logins", true)
	record := func(l *kafkaLogin, n int) []sinks.Record { return []sinks.Record{sinktest.NewRecord(l.name, n)} }

	logins := kafkaLogins()
	for _, l := range logins {
		l.dir = t.TempDir()
		l.write(t, authority, kafkaPassword)
		t.Run(l.name, func(t *testing.T) {
			wrong := *l
			wrong.dir = t.TempDir()
			wrong.write(t, authority, "n0t-th3-pa55w0rd")
			want := sinks.ReasonUnauthorized
			switch l.listener {
			case kafkatest.TLS: // another authority, and no way to find out whose fault that is
				wrong.write(t, next, "")
				want = sinks.ReasonUnreachable
			case kafkatest.MutualTLS: // the right one, and a certificate that it has not signed
				wrong.write(t, next, "")
				write(t, filepath.Join(wrong.dir, "ca.pem"), authority.PEM())
			}
			class := sinks.Classify(firstError(openSink(t, wrong.config("logins", broker.AddrOf(l.listener))).Deliver(t.Context(), record(l, 1))))
			if class == nil || class.Permanent || class.Reason != want {
				t.Errorf("with wrong files: got %v, want a transient %s", class, want)
			} else if strings.Contains(class.Error(), "n0t-th3-pa55w0rd") {
				t.Errorf("the password shows in %q", class)
			}
		})
		l.sink = openSink(t, l.config("logins", broker.AddrOf(l.listener)))
		if err := l.sink.Deliver(t.Context(), record(l, 1)); err != nil {
			t.Fatalf("%s: %v", l.name, firstError(err))
		}
	}

	broker.Rotate(second)
	for _, l := range logins {
		t.Run(l.name+" rotated", func(t *testing.T) {
			deliverUntil(t, l.sink, record(l, 2), func(class *sinks.Error) bool {
				return strings.Contains(class.Error(), "unknown authority")
			})
			if l.password {
				l.write(t, next, kafkaPassword)
				deliverUntil(t, l.sink, record(l, 2), func(class *sinks.Error) bool { return class.Reason == sinks.ReasonUnauthorized })
			}
			l.write(t, next, second.Password)
			t.Logf("delivered %v after the files were right", deliverAll(t, l.sink, record(l, 2)))
		})
	}
	if got, want := len(readAll(t, broker, "logins")), 2*len(logins); got != want {
		t.Errorf("got %d records stored, want %d", got, want)
	}
}
