package sinks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

func kafkaConfig(topic string, brokers ...string) *kafka.Config {
	c := kafka.NewConfig()
	c.Brokers, c.Topic = brokers, topic
	c.InsecureCredentials = true
	return c
}

// appendBlanks makes a record larger and changes nothing else.
func appendBlanks(n int) func(*sinks.Record) {
	return func(r *sinks.Record) { r.Body = append(r.Body, bytes.Repeat([]byte(" "), n)...) }
}

func storedOf(records []kafkatest.Record) []sinktest.Stored {
	stored := make([]sinktest.Stored, len(records))
	for i, r := range records {
		attributes := map[string]string{"datacontenttype": r.Headers["content-type"]}
		for name, value := range r.Headers {
			if name, ok := strings.CutPrefix(name, "ce_"); ok {
				attributes[name] = value
			}
		}
		stored[i] = sinktest.Stored{
			DedupID: r.Headers["kubeferry-dedup-id"], Key: string(r.Key), Headers: r.Headers, Attributes: attributes, Body: r.Value,
		}
	}
	return stored
}

// testKafkaSuite runs the suite against Apache Kafka, with TLS and a login, behind a proxy that the broker advertises
// as its own address.
func testKafkaSuite(t *testing.T, broker *kafkaServer) {
	t.Helper()
	link := broker.saslLink
	link.ForwardTo(broker.AddrOf(linkedSASL))
	broker.allow(t, "User:"+kafkaUser, kadm.OpWrite, "suite-")

	n := 0
	sinktest.Run(t, sinktest.Harness{Kind: kafka.Kind(), New: func(t *testing.T) *sinktest.Peer {
		link.Come()
		n++
		broker, topic := broker.In(t), fmt.Sprintf("suite-%d", n)
		broker.CreateTopic(topic, 3)
		broker.awaitRight(t, topic, true)
		denied := false
		deny := func() {
			denied = true
			broker.deny(t, topic)
		}
		return &sinktest.Peer{
			Config: func() sinks.Config {
				c := kafkaConfig(topic, link.Addr())
				c.Compression = "none" // blanks would shrink to nothing
				c.TLS = &sinks.TLS{CAFile: broker.caFile}
				c.SASL = &kafka.SASL{Mechanism: "SCRAM-SHA-512", Username: kafkaUser, Password: kafkaPassword}
				return c
			},
			Stored: func() []sinktest.Stored {
				return storedOf(readAll(t, broker, topic))
			},
			Fail:   deny,
			Poison: appendBlanks(2 << 20),
			Hang:   link.Stall,
			Leave:  link.Leave,
			Deny:   deny,
			Mend: func() {
				link.Come()
				if denied {
					broker.relent(t, topic)
				}
				denied = false
			},
			Secrets: []string{kafkaPassword},
			Cannot:  map[sinktest.Ability]string{sinktest.FailRecord: "a broker refuses single records for good only"},
		}
	}})
}

// TestKafkaSuiteRefusals runs the suite against franz-go's stand-in for a broker, which can be made to refuse anything:
// a single record for a reason that passes, and a login.
func TestKafkaSuiteRefusals(t *testing.T) {
	t.Parallel()
	const user, password = kafkaUser, kafkaPassword
	sinktest.Run(t, sinktest.Harness{Kind: kafka.Kind(), New: func(t *testing.T) *sinktest.Peer {
		link := newProxy(t)
		faults := &brokerFaults{}
		cluster := newFake(t, link, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", user, password),
			kfake.Superuser("PLAIN", user, password), kfake.SeedTopics(3, "suite"))
		faults.install(cluster)
		return &sinktest.Peer{
			Config: func() sinks.Config {
				c := kafkaConfig("suite", link.Addr())
				c.Compression = "none" // the faults look for ids in the batch
				c.SASL = &kafka.SASL{Mechanism: "SCRAM-SHA-512", Username: user, Password: password}
				return c
			},
			Stored: func() []sinktest.Stored {
				link.Come()
				return storedOf(readFake(t, cluster, "suite", user, password))
			},
			Fail:       func() { faults.set(func(f *brokerFaults) { f.all = kerr.NotEnoughReplicas }) },
			FailRecord: func(r *sinks.Record) { faults.set(func(f *brokerFaults) { f.failing = r.DedupID }) },
			Poison:     func(r *sinks.Record) { faults.set(func(f *brokerFaults) { f.poisoned = r.DedupID }) },
			Hang:       link.Stall,
			Leave:      link.Leave,
			Deny:       func() { faults.set(func(f *brokerFaults) { f.deny = true }) },
			Mend: func() {
				link.Come()
				faults.set(func(f *brokerFaults) { f.all, f.failing, f.deny = nil, "", false })
			},
			Secrets: []string{password},
		}
	}})
}

// TestKafkaMetadata: with placeholders in the topic too, only the metadata of the topics in use is read, and a topic that comes to be used
// later is found at once.
func TestKafkaMetadata(t *testing.T) {
	t.Parallel()
	link := newProxy(t)
	cluster := newFake(t, link, kfake.SeedTopics(2, "used.shop", "used.web", "used.idle", "other"))
	var mu sync.Mutex
	asked := map[string]bool{}
	cluster.ControlKey(int16(kmsg.Metadata), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		topics := request.(*kmsg.MetadataRequest).Topics
		if topics == nil {
			asked["all topics"] = true
		}
		for _, topic := range topics {
			asked[*topic.Topic] = true
		}
		return nil, nil, false
	})
	sink := openSink(t, kafkaConfig("used.{namespace}", link.Addr()))
	for n, namespace := range []string{"shop", "shop", "web"} {
		r := sinktest.NewRecord("a", n+1)
		r.Fields.Namespace = namespace
		if err := sink.Deliver(within(t, 10*time.Second), []sinks.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sink.(sinks.Checker).Check(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := map[string]bool{"used.shop": true, "used.web": true}; !maps.Equal(asked, want) {
		t.Errorf("metadata was read of %v, want %v", asked, want)
	}
}

// newFake starts a cluster of one node that advertises the proxy.
func newFake(t *testing.T, link *proxy.TCP, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	var listener net.Listener
	listen := func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		if err != nil {
			return nil, err
		}
		listener = l
		return advertised{l, link.Addr()}, nil
	}
	cluster, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1), kfake.ListenFn(listen))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	link.ForwardTo(listener.Addr().String())
	return cluster
}

// advertised is a listener that claims another address.
type advertised struct {
	net.Listener
	addr string
}

func (a advertised) Addr() net.Addr {
	addr, _ := net.ResolveTCPAddr("tcp", a.addr)
	return addr
}

func readFake(t *testing.T, cluster *kfake.Cluster, topic, user, password string) []kafkatest.Record {
	t.Helper()
	opts := []kgo.Opt{
		kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50 * time.Millisecond),
	}
	if user != "" {
		opts = append(opts, plainLogin(user, password))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var want int64
	for _, p := range cluster.PartitionInfos(topic) {
		want += p.HighWatermark
	}
	ctx := within(t, 20*time.Second)
	var records []kafkatest.Record
	for int64(len(records)) < want {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("got %d of %d records: %v", len(records), want, ctx.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			headers := map[string]string{}
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			records = append(records, kafkatest.Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Headers: headers})
		})
	}
	return records
}

// brokerFaults makes a kfake cluster refuse.
type brokerFaults struct {
	mu                sync.Mutex // guards what follows
	all               *kerr.Error
	failing, poisoned string
	deny              bool
}

func (f *brokerFaults) set(change func(*brokerFaults)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *brokerFaults) install(cluster *kfake.Cluster) {
	cluster.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		produce := request.(*kmsg.ProduceRequest)
		code := f.codeFor(produce)
		if code == nil {
			return nil, nil, false
		}
		response := produce.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range produce.Topics {
			t := kmsg.NewProduceResponseTopic()
			t.Topic, t.TopicID = topic.Topic, topic.TopicID
			for _, partition := range topic.Partitions {
				p := kmsg.NewProduceResponseTopicPartition()
				p.Partition, p.ErrorCode = partition.Partition, code.Code
				t.Partitions = append(t.Partitions, p)
			}
			response.Topics = append(response.Topics, t)
		}
		return response, nil, true
	})
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.deny {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return response, nil, true
	})
}

func (f *brokerFaults) codeFor(request *kmsg.ProduceRequest) *kerr.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all != nil {
		return f.all
	}
	for _, topic := range request.Topics {
		for _, partition := range topic.Partitions {
			switch {
			case f.poisoned != "" && holds(partition.Records, f.poisoned):
				return kerr.InvalidRecord
			case f.failing != "" && holds(partition.Records, f.failing):
				return kerr.NotEnoughReplicas
			}
		}
	}
	return nil
}

// holds reports whether an uncompressed batch has a record with that id. An id is a prefix of others: it ends with the
// header, where the next record begins, so it is looked for with what follows in the body.
func holds(batch []byte, dedupID string) bool {
	id, _ := json.Marshal(strings.TrimPrefix(dedupID, "suite/"))
	return bytes.Contains(batch, append([]byte(`"id":`), id...))
}

func plainLogin(user, password string) kgo.Opt {
	return kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism())
}
