// Package kafkatest runs a real single-node Apache Kafka (KRaft, no ZooKeeper, no containers) for tests, and reads
// what was written to it with franz-go, a client that has nothing in common with the one under test.
//
// It needs java (17 or newer) and, the first time on a machine, mvn, which fetches the jars that pom.xml pins. Without
// them a stand-in takes Kafka's place and the test's log says so; where the environment has CI=true, that fails.
package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
)

// Options change the broker. The zero value is a plaintext broker that creates no topics by itself.
type Options struct {
	// Properties are added to server.properties, or replace what is there. The stand-in ignores them.
	Properties map[string]string
	// Heap is the broker's -Xmx; 384m if empty.
	Heap string
}

// Broker is a Kafka cluster of one node. Its methods fail the test instead of returning errors, so they belong on the
// test's own goroutine.
type Broker struct {
	tb   testing.TB
	port int
	node node
}

// node is the program behind a Broker. What it stores and its port survive kill and start.
type node interface {
	start(ctx context.Context) error
	kill()
}

const startTimeout = 2 * time.Minute

// Start runs a broker with default options that ends with the test.
func Start(tb testing.TB) *Broker {
	tb.Helper()
	return StartWith(tb, Options{})
}

// StartWith runs a broker that ends with the test.
func StartWith(tb testing.TB, opts Options) *Broker {
	tb.Helper()
	dir := tb.TempDir()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Minute) // the first time jars are fetched
	defer cancel()
	java, err := findJava(ctx, testLog{tb})
	if err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatalf("no Kafka broker: %v", err)
		}
		tb.Logf("NOT A REAL BROKER: franz-go's kfake takes Kafka's place, because %v", err)
	}

	// Ports are picked before the broker listens on them: if another process was faster, others are tried.
	for attempt := 1; ; attempt++ {
		b := &Broker{tb: tb}
		if b.port, err = freeport.Pick(); err != nil {
			tb.Fatal(err)
		}
		nodeDir := fmt.Sprintf("%s/%d", dir, attempt)
		if err := os.Mkdir(nodeDir, 0o755); err != nil {
			tb.Fatal(err)
		}
		if java != nil {
			b.node, err = newJavaNode(ctx, java, nodeDir, b.port, opts)
		} else {
			b.node, err = &fakeNode{dir: nodeDir, port: b.port}, nil
		}
		if err == nil {
			tb.Cleanup(b.node.kill)
			err = b.start()
		}
		if err == nil {
			return b
		}
		if attempt == 3 || !errors.Is(err, errPortTaken) {
			tb.Fatalf("start Kafka broker: %v", err)
		}
	}
}

// Addr is the broker's bootstrap address, host:port.
func (b *Broker) Addr() string { return freeport.Addr(b.port) }

// Stop kills the broker, as a crash would. What it stored is there again after [Broker.Restart].
func (b *Broker) Stop() { b.node.kill() }

// Restart kills the broker if it runs, starts it on the same port with the same data, and returns when it is ready.
func (b *Broker) Restart() {
	b.tb.Helper()
	b.node.kill()
	if err := b.start(); err != nil {
		b.tb.Fatalf("restart Kafka broker: %v", err)
	}
}

// CreateTopic creates a topic and returns when the broker leads its partitions.
func (b *Broker) CreateTopic(name string, partitions int) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), startTimeout)
	defer cancel()
	client := b.client()
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, int32(partitions), 1, nil, name); err != nil {
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
		return nil
	})
	if err != nil {
		b.tb.Fatalf("create topic %q: %v", name, err)
	}
}

func (b *Broker) start() error {
	ctx, cancel := context.WithTimeout(b.tb.Context(), startTimeout)
	defer cancel()
	return b.node.start(ctx)
}

// client is a new franz-go client; the caller closes it.
func (b *Broker) client(opts ...kgo.Opt) *kgo.Client {
	b.tb.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(b.Addr()), kgo.MetadataMinAge(50 * time.Millisecond)}, opts...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		b.tb.Fatalf("Kafka client: %v", err)
	}
	return client
}

// answers succeeds if the broker at addr answers a metadata request and has a controller that takes requests.
func answers(ctx context.Context, addr string) error {
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
	if len(resp.Brokers) == 0 || resp.ControllerID < 0 {
		return errors.New("no broker is registered yet")
	}
	return nil
}
