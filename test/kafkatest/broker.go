// Package kafkatest runs a real Apache Kafka (KRaft, no ZooKeeper, no containers) for tests, of one broker or several,
// and reads what was written to it with clients that have nothing in common with the one under test: franz-go and
// Kafka's own console consumer.
//
// It needs java (17 or newer) and the jars that pom.xml pins, which [Prepare] fetches with mvn the first time on a
// machine. Without them a stand-in takes Kafka's place and the test's log shows that, or the test is skipped if only Kafka
// itself will do; where the environment has CI=true, that fails.
package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Options change the broker. The zero value is one plaintext broker that creates no topics by itself.
type Options struct {
	// Properties are added to server.properties, or replace what is there. The stand-in ignores them.
	Properties map[string]string
	// Heap is a broker's -Xmx; 384m if empty.
	Heap string
	// Brokers is their number, 1 if zero. The first is also the controller. Several need the real thing.
	Brokers int
	// Secure adds the listeners with TLS and logins. The stand-in has none of them.
	Secure *Secure
	// Also adds listeners that give clients another address than their own: that of a proxy.
	Also map[Listener]Also
}

// Broker is a Kafka cluster. Its methods fail the test instead of returning errors, so they belong on the test's own
// goroutine.
type Broker struct {
	tb    testing.TB
	java  *java // nil for the stand-in
	nodes []node
}

// node is the program behind a broker. What it stores and its ports survive kill and start.
type node interface {
	start(ctx context.Context) error
	kill()
	addr(listener Listener) string
}

const startTimeout = 2 * time.Minute

// Start runs a broker with default options that ends with the test.
func Start(tb testing.TB) *Broker {
	tb.Helper()
	return StartWith(tb, Options{})
}

// StartWith runs a cluster that ends with the test.
func StartWith(tb testing.TB, opts Options) *Broker {
	tb.Helper()
	opts.Brokers = max(opts.Brokers, 1)
	dir := tb.TempDir()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*startTimeout) // of formatting and of starting
	defer cancel()
	java, err := findJava()
	switch {
	case err != nil && os.Getenv("CI") == "true":
		tb.Fatalf("no Kafka broker: %v", err)
	case err != nil && opts.Brokers > 1:
		tb.Skipf("no Kafka broker, and its stand-in cannot do what is needed: %v", err)
	case err != nil:
		tb.Logf("NOT A REAL BROKER: franz-go's kfake takes Kafka's place, because %v", err)
	}

	// Ports are picked before the brokers listen on them: if another process was faster, others are tried.
	for attempt := 1; ; attempt++ {
		b := &Broker{tb: tb, java: java}
		b.nodes, err = newNodes(ctx, java, fmt.Sprintf("%s/%d", dir, attempt), opts)
		if err == nil {
			tb.Cleanup(b.Stop)
			err = b.start(b.nodes...)
		}
		if err == nil {
			return b
		}
		b.Stop()
		if attempt == 3 || !errors.Is(err, errPortTaken) {
			tb.Fatalf("start Kafka broker: %v", err)
		}
	}
}

// In returns the broker for use in another test, which must end before the one that started it.
func (b *Broker) In(tb testing.TB) *Broker { return &Broker{tb: tb, java: b.java, nodes: b.nodes} }

// Real reports whether it is Apache Kafka, not the stand-in.
func (b *Broker) Real() bool { return b.java != nil }

// Addr is the first broker's bootstrap address, host:port, without TLS or login.
func (b *Broker) Addr() string { return b.AddrOf(Plaintext) }

// AddrOf is the first broker's address of a listener. It skips the test if only the real thing has that.
func (b *Broker) AddrOf(listener Listener) string {
	b.tb.Helper()
	if b.java == nil && listener != Plaintext {
		b.tb.Skipf("the stand-in for Kafka has no listener %s", listener)
	}
	return b.nodes[0].addr(listener)
}

// Addrs are the plaintext addresses of all brokers.
func (b *Broker) Addrs() []string {
	var addrs []string
	for _, n := range b.nodes {
		addrs = append(addrs, n.addr(Plaintext))
	}
	return addrs
}

// Stop kills all brokers, as a crash would. What they stored is there again after [Broker.Restart].
func (b *Broker) Stop() {
	for _, n := range b.nodes {
		n.kill()
	}
}

// Restart kills the brokers that run, starts all on the same ports with the same data, and returns when they are ready.
func (b *Broker) Restart() {
	b.tb.Helper()
	b.Stop()
	if err := b.start(b.nodes...); err != nil {
		b.tb.Fatalf("restart Kafka: %v", err)
	}
}

// Kill kills one broker, as a crash would; the first, which is the controller, is 0.
func (b *Broker) Kill(broker int) { b.nodes[broker].kill() }

// Revive starts a broker that was killed.
func (b *Broker) Revive(broker int) {
	b.tb.Helper()
	if err := b.start(b.nodes[broker]); err != nil {
		b.tb.Fatalf("restart Kafka broker %d: %v", broker, err)
	}
}

// Freeze stops the process of a broker, which keeps its connections and does not answer, until [Broker.Thaw]. The stand-in cannot do that.
func (b *Broker) Freeze(broker int) { b.signal(broker, syscall.SIGSTOP) }

// Thaw ends what Freeze began.
func (b *Broker) Thaw(broker int) { b.signal(broker, syscall.SIGCONT) }

func (b *Broker) signal(broker int, signal syscall.Signal) {
	b.tb.Helper()
	n, ok := b.nodes[broker].(*javaNode)
	if !ok {
		b.tb.Skip("the stand-in for Kafka is no process of its own")
	}
	n.process.Signal(signal)
}

// CreateTopic creates a topic, with a replica on each broker, and returns when it takes records.
func (b *Broker) CreateTopic(name string, partitions int) {
	b.tb.Helper()
	b.CreateTopicWith(name, partitions, nil)
}

// CreateTopicWith is CreateTopic with settings of the topic's own.
func (b *Broker) CreateTopicWith(name string, partitions int, settings map[string]string) {
	b.tb.Helper()
	b.createTopic(name, partitions, len(b.nodes), settings)
}

// CreateTopicOnce is CreateTopic with one replica of each partition.
func (b *Broker) CreateTopicOnce(name string, partitions int) {
	b.tb.Helper()
	b.createTopic(name, partitions, 1, nil)
}

func (b *Broker) createTopic(name string, partitions, replicas int, settings map[string]string) {
	b.tb.Helper()
	configs := map[string]*string{}
	for key, value := range settings {
		configs[key] = &value
	}
	ctx, cancel := context.WithTimeout(b.tb.Context(), startTimeout)
	defer cancel()
	client := b.client()
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, int32(partitions), int16(replicas), configs, name); err != nil {
		b.tb.Fatalf("create topic %q: %v", name, err)
	}
	err := poll(ctx, func() error {
		topics, err := admin.ListTopics(ctx, name)
		if err != nil {
			return err
		}
		if err := topics.Error(); err != nil {
			return err
		}
		ready := 0
		for _, p := range topics[name].Partitions {
			if p.Err == nil && p.Leader >= 0 {
				ready++
			}
		}
		if ready < partitions {
			return fmt.Errorf("%d of %d partitions have a leader", ready, partitions)
		}
		ends, err := admin.ListEndOffsets(ctx, name) // metadata name a leader before it has opened its logs
		if err != nil {
			return err
		}
		return ends.Error()
	})
	if err != nil {
		b.tb.Fatalf("create topic %q: %v", name, err)
	}
}

// Settings returns the number of a topic's partitions and its cleanup.policy.
func (b *Broker) Settings(topic string) map[string]string {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), startTimeout)
	defer cancel()
	client := b.client()
	defer client.Close()
	admin := kadm.NewClient(client)
	settings := map[string]string{}
	err := poll(ctx, func() error {
		topics, err := admin.ListTopics(ctx, topic)
		if err == nil {
			err = topics.Error()
		}
		if err != nil {
			return err
		}
		settings["partitions"] = strconv.Itoa(len(topics[topic].Partitions))
		configs, err := admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return err
		}
		for _, config := range configs {
			for _, entry := range config.Configs {
				if entry.Key == "cleanup.policy" {
					settings[entry.Key] = entry.MaybeValue()
				}
			}
		}
		return nil
	})
	if err != nil {
		b.tb.Fatalf("read the settings of topic %q: %v", topic, err)
	}
	return settings
}

// CountTopics returns how many topics have names with a prefix.
func (b *Broker) CountTopics(prefix string) (n int) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), startTimeout)
	defer cancel()
	client := b.client()
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(ctx)
	if err != nil {
		b.tb.Fatalf("list topics: %v", err)
	}
	for name := range topics {
		if strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n
}

// start starts nodes side by side: brokers are ready only once the controller is.
func (b *Broker) start(nodes ...node) error {
	ctx, cancel := context.WithTimeout(b.tb.Context(), startTimeout)
	defer cancel()
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = n.start(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// client is a new franz-go client; the caller closes it.
func (b *Broker) client(opts ...kgo.Opt) *kgo.Client {
	b.tb.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(b.Addrs()...), kgo.MetadataMinAge(50 * time.Millisecond)}, opts...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		b.tb.Fatalf("Kafka client: %v", err)
	}
	return client
}

// answers succeeds if the broker at addr answers a metadata request, names the node among those alive, and has a
// controller that takes requests.
func answers(ctx context.Context, addr string, id int32) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RetryTimeout(time.Second), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	if err != nil {
		return err
	}
	alive := slices.ContainsFunc(resp.Brokers, func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == id })
	if !alive || resp.ControllerID < 0 {
		return fmt.Errorf("broker %d is not registered yet", id)
	}
	return nil
}
