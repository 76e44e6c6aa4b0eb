package kafka

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/kubeferry/kubeferry/sinks"
)

// leaders stands in for three brokers that lead twelve partitions. One of them hangs for as long as hangs is set.
type leaders struct {
	broker
	hangs atomic.Bool
}

const leadersCount, hangingLeader = 3, 2

// RoundTrip implements [kafka.RoundTripper].
func (l *leaders) RoundTrip(ctx context.Context, addr net.Addr, request kafka.Request) (kafka.Response, error) {
	switch r := request.(type) {
	case *metadata.Request:
		response := &metadata.Response{}
		for id := range int32(leadersCount) {
			response.Brokers = append(response.Brokers, metadata.ResponseBroker{NodeID: id, Host: "broker", Port: 9092 + id})
		}
		for _, name := range r.TopicNames {
			topic := metadata.ResponseTopic{Name: name}
			for i := range l.partitions {
				topic.Partitions = append(topic.Partitions, metadata.ResponsePartition{PartitionIndex: i, LeaderID: i % leadersCount})
			}
			response.Topics = append(response.Topics, topic)
		}
		return response, nil
	case *produce.Request:
		if l.hangs.Load() && r.Topics[0].Partitions[0].Partition%leadersCount == hangingLeader {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	return l.broker.RoundTrip(ctx, addr, request)
}

// One of three brokers hangs: calls do not wait for it, but for one request every five seconds. What the others lead is stored.
func TestLeaderThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leaders{broker: broker{partitions: 12, refuse: func([]string) kafka.Error { return 0 }}}
		l.hangs.Store(true)
		config := testConfig()
		sink := newTestSink(t, config, &l.broker)
		sink.client.Transport = l
		next := 0
		deliver := func() (stored, failed int, took time.Duration) {
			var batch []sinks.Record
			for range 120 {
				next++
				batch = append(batch, testRecord(fmt.Sprint(next), 1))
			}
			start := time.Now()
			for _, err := range sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch)) {
				class := sinks.Classify(err)
				switch {
				case class == nil:
					stored++
				case class.Reason == sinks.ReasonTimeout && !class.Permanent:
					failed++
				default:
					t.Errorf("got %v", err)
				}
			}
			return stored, failed, time.Since(start)
		}
		slow, calls, start := 0, 0, time.Now()
		for time.Since(start) < time.Minute {
			stored, failed, took := deliver()
			if stored < 60 || failed < 20 {
				t.Fatalf("%d stored, %d failed", stored, failed)
			}
			calls++
			if took > time.Second {
				slow++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if slow != 4 { // at 0, 15, 30 and 45 s: each takes ten
			t.Errorf("%d of %d calls waited for the broker, want 4", slow, calls)
		}
		l.hangs.Store(false)
		time.Sleep(trialInterval)
		if _, failed, took := deliver(); took > 0 { // a trial; what comes beside it fails
			t.Errorf("%d failed in %v", failed, took)
		}
		if _, failed, took := deliver(); failed > 0 || took > 0 {
			t.Errorf("%d failed in %v once the broker answers again", failed, took)
		}
	})
}
