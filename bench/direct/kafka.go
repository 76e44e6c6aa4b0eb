package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// kafkaClient spreads batches over the topic's partitions.
type kafkaClient struct {
	client     *kafka.Client
	transport  *kafka.Transport
	topic      string
	partitions int
}

func newKafka(ctx context.Context, broker, topic string) (*kafkaClient, error) {
	k := &kafkaClient{transport: &kafka.Transport{MetadataTopics: []string{topic}}, topic: topic}
	k.client = &kafka.Client{Addr: kafka.TCP(broker), Transport: k.transport}
	meta, err := k.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	for _, t := range meta.Topics {
		k.partitions = max(k.partitions, len(t.Partitions))
	}
	if k.partitions == 0 {
		return nil, fmt.Errorf("no topic %q", topic)
	}
	return k, nil
}

func (k *kafkaClient) send(ctx context.Context, first, n int, body []byte) error {
	for {
		records := make([]kafka.Record, n) // a request reads them up
		for i := range records {
			records[i] = kafka.Record{Key: kafka.NewBytes(fmt.Appendf(nil, "object-%d", first+i)), Value: kafka.NewBytes(body)}
		}
		response, err := k.client.Produce(ctx, &kafka.ProduceRequest{
			Topic: k.topic, Partition: first / batch % k.partitions, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
		})
		if err == nil {
			err = response.Error
		}
		var code kafka.Error
		if !errors.As(err, &code) || !code.Temporary() {
			return err
		}
		select { // a new topic's leader is not known everywhere at once
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func (k *kafkaClient) close() { k.transport.CloseIdleConnections() }
