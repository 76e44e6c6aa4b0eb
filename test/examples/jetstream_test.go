package examples_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/consume"
)

// ordered keeps the table of package consume with an ordered consumer of JetStream. The server does not know how far that has read, so at
// each start it reads the whole stream.
type ordered struct {
	t    *testing.T
	url  string
	kill func()

	mu    sync.Mutex // guards table
	table *consume.Table
}

func newOrdered(t *testing.T, url string) *ordered {
	return &ordered{t: t, url: url, table: consume.NewTable()}
}

// Start reads the stream until Kill is called, or until the test ends.
func (o *ordered) Start() {
	ctx, cancel := context.WithCancel(o.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := o.follow(ctx); err != nil { // the server is away
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	o.kill = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	o.t.Cleanup(o.kill)
}

// follow applies what the stream has, from its beginning on.
func (o *ordered) follow(ctx context.Context) error {
	conn, js, err := jetStream(o.url)
	if err != nil {
		return err
	}
	defer conn.Close()
	consumer, err := js.OrderedConsumer(ctx, topic, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		records, err := consume.Decode(m.Headers().Get, m.Data())
		if err != nil {
			o.t.Errorf("ordered: a message on %s: %v", m.Subject(), err)
		}
		o.mu.Lock()
		for n := range records {
			o.table.Apply(&records[n])
		}
		o.mu.Unlock()
	}
}

// plant puts an object into the table that does not exist, as one is whose deletion was never sent.
func (o *ordered) plant() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.table.Apply(&consume.Record{
		ID: "examples/u/1/ADDED", Cluster: "examples", Pipeline: "jetstream", Subject: ghost, Sequence: fmt.Sprintf("%020d", 1), Type: consume.Added,
		Resource: consume.Resource{Version: "v1", Resource: "configmaps"}, Namespace: namespace,
	})
}

// expectForgotten waits until the planted object is gone.
func (o *ordered) expectForgotten() {
	o.t.Helper()
	eventually(o.t, "the ordered consumer has forgotten what is gone", func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if _, exists := o.table.Get("jetstream", consume.Key{Cluster: "examples", Subject: ghost}); exists {
			return errors.New("it has the ghost")
		}
		return nil
	})
}

// holds is an error unless the table is what exists.
func (o *ordered) holds(want []string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var got []string
	for key, r := range o.table.All() {
		got = append(got, strings.Join([]string{key.Subject, r.UID(), r.ResourceVersion()}, " "))
	}
	return difference(got, want)
}

// take takes the first messages of a new durable consumer and acknowledges none, as a program does that is killed. So the program that reads
// with this consumer afterwards gets these messages ten seconds later, behind newer ones.
func take(t *testing.T, url, stream, durable string, count int) {
	t.Helper()
	conn, js, err := jetStream(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	consumer, err := js.CreateConsumer(t.Context(), stream, jetstream.ConsumerConfig{ // as the examples have it
		Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 10 * time.Second, MaxAckPending: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := consumer.Fetch(count, jetstream.FetchMaxWait(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	taken := 0
	for range batch.Messages() {
		taken++
	}
	if taken != count {
		t.Fatalf("%d messages were taken from %s, want %d: %v", taken, durable, count, batch.Error())
	}
}

// expectRedelivered waits until a durable consumer has nothing left, and at least so many messages were delivered again.
func expectRedelivered(t *testing.T, url, stream, durable string, count uint64) {
	t.Helper()
	conn, js, err := jetStream(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually(t, durable+" has read all", func() error {
		consumer, err := js.Consumer(t.Context(), stream, durable)
		if err != nil {
			return err
		}
		info := consumer.CachedInfo()
		if again := info.Delivered.Consumer - info.Delivered.Stream; again < count || info.NumPending > 0 || info.NumAckPending > 0 {
			return fmt.Errorf("%d were delivered again, %d are pending, %d not acknowledged", again, info.NumPending, info.NumAckPending)
		}
		return nil
	})
}

func jetStream(url string) (*nats.Conn, jetstream.JetStream, error) {
	conn, err := nats.Connect(url, nats.Timeout(30*time.Second), nats.MaxReconnects(-1))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
	}
	return conn, js, err
}
