package sinks_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/kafkatest"
)

// testKafkaRestart kills the broker in the middle of a load.
func testKafkaRestart(t *testing.T, broker *kafkaServer) {
	t.Helper()
	broker.CreateTopic("restart", 6)
	config := kafkaConfig("restart", broker.Addr())
	sink := openSink(t, config)
	l := &load{workers: 4, keysEach: 10, perKey: 50}
	l.run(within(t, 2*time.Minute), t, sink, config.Limits(), l.total()/4, broker.Restart)
	l.check(t, kafkaArrivals(readAll(t, broker, "restart")))
}

// TestKafkaLeaderMoves moves the leaders about between two brokers in the middle of a load, then kills one of them.
func TestKafkaLeaderMoves(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.StartWith(t, kafkatest.Options{Brokers: 2})
	cluster.CreateTopic("load", 6)
	config := kafkaConfig("load", cluster.Addrs()...)
	sink := openSink(t, config)
	l := &load{workers: 4, keysEach: 10, perKey: 300}
	l.run(within(t, 2*time.Minute), t, sink, config.Limits(), l.total()/8, func() {
		cluster.MoveLeaders("load")
		l.await(t, l.total()/4)
		cluster.MoveLeaders("load")
		l.await(t, l.total()/2)
		cluster.Kill(1)
		l.await(t, l.total()*3/4)
		cluster.Revive(1)
	})
	l.check(t, kafkaArrivals(readAll(t, cluster, "load")))
}

// testKafkaTopicDeleted deletes the topic in the middle of a load, so that it is missing for a while. What was stored
// before is gone, by the user's own hand; from the new topic on nothing is missing and all is in order.
func testKafkaTopicDeleted(t *testing.T, broker *kafkaServer) {
	t.Helper()
	for _, create := range []bool{false, true} {
		topic := map[bool]string{false: "made-by-hand", true: "made-by-the-sink"}[create]
		t.Run(topic, func(t *testing.T) {
			broker.CreateTopic(topic, 3)
			config := kafkaConfig(topic, broker.Addr())
			config.CreateTopics = create
			sink := openSink(t, config)
			l := &load{workers: 4, keysEach: 5, perKey: 400}
			l.run(within(t, 2*time.Minute), t, sink, config.Limits(), l.total()/4, func() {
				broker.DeleteTopic(topic)
				if !create {
					l.awaitErrors(t, 4)
					broker.CreateTopic(topic, 3)
				}
				l.mark()
			})
			l.checkSince(t, kafkaArrivals(readAll(t, broker, topic)))
		})
	}
}

// kafkaArrivals are records in the order of each key's partition.
func kafkaArrivals(records []kafkatest.Record) (got []arrival) {
	for _, r := range records {
		got = append(got, arrival{nameOf(string(r.Key)), strings.TrimPrefix(r.Headers["kubeferry-dedup-id"], "suite/")})
	}
	return got
}
