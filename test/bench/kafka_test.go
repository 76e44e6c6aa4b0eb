package bench_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubeferry/kubeferry/sinks"
	kafkasink "github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

const kafkaPartitions = 3

func TestKafka(t *testing.T) {
	broker := kafkatest.StartWith(t, kafkatest.Options{Heap: "512m"})
	t.Run("Client.Produce", func(t *testing.T) {
		share := compareKafka(t, broker, "produce", func(topic string) deliver {
			transport := &kafka.Transport{MetadataTopics: []string{topic}}
			t.Cleanup(transport.CloseIdleConnections)
			client := &kafka.Client{Addr: kafka.TCP(broker.Addr()), Transport: transport}
			return func(ctx context.Context, batch []sinks.Record) error { return produce(ctx, client, topic, batch) }
		})
		fast(t, share)
	})
	// Not the same batches: it makes one request of what several calls have for a partition. Here for comparison, since
	// it is what most programs use.
	t.Run("Writer", func(t *testing.T) {
		compareKafka(t, broker, "writer", func(topic string) deliver {
			writer := &kafka.Writer{
				Addr: kafka.TCP(broker.Addr()), Topic: topic, Balancer: kafka.Murmur2Balancer{Consistent: true},
				BatchSize: batchSize, BatchTimeout: time.Millisecond, RequiredAcks: kafka.RequireAll, Compression: kafka.Snappy,
			}
			t.Cleanup(func() { _ = writer.Close() })
			return func(ctx context.Context, batch []sinks.Record) error {
				messages := make([]kafka.Message, len(batch))
				for i := range batch {
					r := &batch[i]
					messages[i] = kafka.Message{Key: []byte(r.Key), Value: r.Body, Headers: kafkaHeaders(r)}
				}
				return writer.WriteMessages(ctx, messages...)
			}
		})
	})
}

func compareKafka(t *testing.T, broker *kafkatest.Broker, topic string, direct func(topic string) deliver) (share float64) {
	t.Helper()
	broker.CreateTopic(topic+"-direct", kafkaPartitions)
	broker.CreateTopic(topic+"-sink", kafkaPartitions)
	config := kafkasink.NewConfig()
	config.Brokers, config.Topic = []string{broker.Addr()}, topic+"-sink"
	want, share := compare(t, direct(topic+"-direct"), openSink(t, config).Deliver)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, side := range []string{"-direct", "-sink"} {
		if got, err := broker.Count(ctx, topic+side); err != nil || got != int64(want) {
			t.Errorf("%s: got %d records and %v, want %d", topic+side, got, err, want)
		}
	}
	return share
}

// produce is what a program does that calls the library itself: sort by partition, one request for each, side by side.
func produce(ctx context.Context, client *kafka.Client, topic string, batch []sinks.Record) error {
	var groups [kafkaPartitions][]kafka.Record
	ids := []int{0, 1, 2}
	balancer := kafka.Murmur2Balancer{Consistent: true}
	for i := range batch {
		r := &batch[i]
		key := []byte(r.Key)
		partition := balancer.Balance(kafka.Message{Key: key}, ids...)
		groups[partition] = append(groups[partition], kafka.Record{
			Key: kafka.NewBytes(key), Value: kafka.NewBytes(r.Body), Headers: kafkaHeaders(r),
		})
	}
	errs := make(chan error, len(groups))
	for partition, records := range groups {
		go func() {
			if len(records) == 0 {
				errs <- nil
				return
			}
			response, err := client.Produce(ctx, &kafka.ProduceRequest{
				Topic: topic, Partition: partition, RequiredAcks: kafka.RequireAll, Compression: kafka.Snappy,
				Records: kafka.NewRecordReader(records...),
			})
			if err == nil {
				err = response.Error
			}
			errs <- err
		}()
	}
	var all []error
	for range groups {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

func kafkaHeaders(r *sinks.Record) []kafka.Header {
	return []kafka.Header{
		{Key: "content-type", Value: []byte(r.ContentType)},
		{Key: "kubeferry-dedup-id", Value: []byte(r.DedupID)},
	}
}
