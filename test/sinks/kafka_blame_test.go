package sinks_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

// testKafkaBlame has a broker refuse records for what is not their fault: none may become a dead letter.
func testKafkaBlame(t *testing.T, broker *kafkaServer) {
	t.Helper()
	const tooOld = 2 * time.Second
	link := broker.plainLink
	link.ForwardTo(broker.AddrOf(linkedPlaintext))

	t.Run("no key for a compacted topic", func(t *testing.T) {
		broker.CreateTopicWith("compacted", 1, map[string]string{"cleanup.policy": "compact"})
		config := kafkaConfig("compacted", link.Addr())
		config.Key = "none"
		batch := []sinks.Record{sinktest.NewRecord("a", 1), sinktest.NewRecord("b", 1)}
		deliverUntil(t, openSink(t, config), batch, func(class *sinks.Error) bool {
			return !class.Permanent && class.Reason == sinks.ReasonRejected && strings.Contains(class.Error(), "set key")
		})
	})

	t.Run("a request that was long under way", func(t *testing.T) {
		broker.CreateTopicWith("late", 1, map[string]string{"message.timestamp.before.max.ms": strconv.FormatInt(tooOld.Milliseconds(), 10)})
		config := kafkaConfig("late", link.Addr())
		config.Compression = "none" // the link must see the id
		sink := openSink(t, config)
		batch := []sinks.Record{sinktest.NewRecord("a", 1)}
		// Not before the request is written, and has its timestamp, does its age count.
		held := link.StallAt(batch[0].ID)
		come := make(chan struct{})
		go func() {
			defer close(come)
			select {
			case <-held:
			case <-t.Context().Done():
				return
			}
			select {
			case <-time.After(tooOld + 100*time.Millisecond):
				link.Come()
			case <-t.Context().Done():
			}
		}()
		t.Cleanup(func() { <-come })
		class := sinks.Classify(firstError(sink.Deliver(t.Context(), batch)))
		if class == nil || class.Permanent || class.Reason != sinks.ReasonRejected || !strings.Contains(class.Error(), "Invalid Timestamp") {
			t.Errorf("got %v, want a refused timestamp that is not permanent", class)
		}
		deliverAll(t, sink, batch)
		if got := len(readAll(t, broker, "late")); got != 1 {
			t.Errorf("got %d records stored, want 1", got)
		}
	})

	// Nobody answers, so what the broker refuses counts as delivered.
	t.Run("requiredAcks 0", func(t *testing.T) {
		broker.CreateTopic("unacknowledged", 1)
		config := kafkaConfig("unacknowledged", link.Addr())
		config.RequiredAcks = "0"
		sink := openSink(t, config)
		deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)})
		oversize := sinktest.NewRecord("b", 1)
		oversize.Body = noise(1_500_000)
		if err := sink.Deliver(t.Context(), []sinks.Record{oversize}); err != nil {
			t.Errorf("got %v, want the broker not to be asked", firstError(err))
		}
		stored, err := broker.Consume(within(t, 30*time.Second), func(records []kafkatest.Record) bool { return len(records) > 0 }, "unacknowledged")
		if err != nil || len(stored) != 1 || nameOf(string(stored[0].Key)) != "a" {
			t.Errorf("got %v and %v, want the first record alone", stored, err)
		}
	})
}
