package sinks_test

import (
	"context"
	"crypto/tls"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

const kafkaUser, kafkaPassword = "ferry-user", "pa55-w0rd-0f-th3-su1t3"

// The listeners that [kafkaServer] has beside those of kafkatest.
const (
	linkedSASL      kafkatest.Listener = "LINKEDSASL"      // advertises saslLink
	linkedPlaintext kafkatest.Listener = "LINKEDPLAINTEXT" // advertises plainLink
	elsewhere       kafkatest.Listener = "ELSEWHERE"       // with TLS; advertises nowhere
)

// kafkaServer is a broker with each listener that a test of TestKafka needs. Who logs in has no rights but those of
// [kafkaServer.allow]; who does not may do everything.
type kafkaServer struct {
	*kafkatest.Broker
	authority           *sinktest.Authority
	caFile              string // has its certificate
	saslLink, plainLink *proxy.TCP
	nowhere             string
}

func startKafka(t *testing.T) *kafkaServer {
	t.Helper()
	s := &kafkaServer{
		authority: sinktest.NewAuthority(t), caFile: filepath.Join(t.TempDir(), "ca.pem"),
		saslLink: newProxy(t), plainLink: newProxy(t), nowhere: nobodyAt(t),
	}
	write(t, s.caFile, s.authority.PEM())
	secure := brokerSecrets(s.authority, kafkaPassword)
	s.Broker = kafkatest.StartWith(t, kafkatest.Options{
		Properties: map[string]string{
			"num.partitions":                     "4",
			"authorizer.class.name":              "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":                        "User:ANONYMOUS", // every client without a login
			"early.start.listeners":              "CONTROLLER",
			"replica.fetch.wait.max.ms":          "100",
			"metadata.max.idle.interval.ms":      "100",
			"socket.connection.setup.timeout.ms": "2000",
		},
		Secure: &secure,
		Also: map[kafkatest.Listener]kafkatest.Also{
			linkedSASL:      {Like: kafkatest.SASL, Advertise: s.saslLink.Addr()},
			linkedPlaintext: {Like: kafkatest.Plaintext, Advertise: s.plainLink.Addr()},
			elsewhere:       {Like: kafkatest.TLS, Advertise: s.nowhere},
		},
	})
	return s
}

// In returns the server for use in another test.
func (s *kafkaServer) In(t *testing.T) *kafkaServer {
	in := *s
	in.Broker = s.Broker.In(t)
	return &in
}

// brokerSecrets are the certificates and the password of a broker.
func brokerSecrets(authority *sinktest.Authority, password string) kafkatest.Secure {
	cert, key := authority.Issue("broker", "127.0.0.1")
	return kafkatest.Secure{Cert: cert, Key: key, ClientCA: authority.PEM(), User: kafkaUser, Password: password}
}

// allow gives a principal a right to all topics whose names begin with prefix.
func (s *kafkaServer) allow(t *testing.T, principal string, operation kadm.ACLOperation, prefix string) {
	t.Helper()
	acl := kadm.NewACLs().Topics(prefix).ResourcePatternType(kadm.ACLPatternPrefixed).
		Operations(operation).Allow(principal).AllowHosts("*")
	s.admin(t, func(ctx context.Context, admin *kadm.Client) error {
		results, err := admin.CreateACLs(ctx, acl)
		if err != nil {
			return err
		}
		return results[0].Err
	})
}

// deny keeps the user from a topic, also if [kafkaServer.allow] gave the right.
func (s *kafkaServer) deny(t *testing.T, topic string) {
	t.Helper()
	s.admin(t, func(ctx context.Context, admin *kadm.Client) error {
		results, err := admin.CreateACLs(ctx, denial(topic))
		if err != nil {
			return err
		}
		return results[0].Err
	})
	s.awaitRight(t, topic, false)
}

// relent takes back what deny did.
func (s *kafkaServer) relent(t *testing.T, topic string) {
	t.Helper()
	s.admin(t, func(ctx context.Context, admin *kadm.Client) error {
		results, err := admin.DeleteACLs(ctx, denial(topic))
		if err != nil {
			return err
		}
		return results[0].Err
	})
	s.awaitRight(t, topic, true)
}

func denial(topic string) *kadm.ACLBuilder {
	return kadm.NewACLs().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).
		Operations(kadm.OpAll).Deny("User:" + kafkaUser).DenyHosts("*")
}

func (s *kafkaServer) admin(t *testing.T, do func(ctx context.Context, admin *kadm.Client) error) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := do(within(t, 20*time.Second), kadm.NewClient(client)); err != nil {
		t.Fatal(err)
	}
}

// awaitRight waits until the broker acts on a change of rights: the user may write to the topic, or may not.
func (s *kafkaServer) awaitRight(t *testing.T, topic string, want bool) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.AddrOf(kafkatest.SASL)), plainLogin(kafkaUser, kafkaPassword),
		kgo.DialTLSConfig(&tls.Config{RootCAs: s.authority.Pool()}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	request.IncludeTopicAuthorizedOperations = true
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = kmsg.StringPtr(topic)
	request.Topics = append(request.Topics, asked)
	for ctx := within(t, 20*time.Second); ; {
		response, err := request.RequestWith(ctx, client)
		if err != nil {
			t.Fatal(err)
		}
		if mayWrite := response.Topics[0].AuthorizedOperations&(1<<int(kmsg.ACLOperationWrite)) != 0; mayWrite == want {
			return
		}
	}
}
