package kafkatest

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
)

// Record is a record as the broker stores it.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte // nil if the record has none
	Value     []byte // nil is a tombstone, which differs from empty
	Headers   map[string]string
	Timestamp time.Time
	// Compression of the batch that it is stored in: none, gzip, snappy, lz4 or zstd.
	Compression string
}

// Message is what docs/schema describes of the record.
func (r *Record) Message() asyncapi.Message {
	return asyncapi.Message{Headers: r.Headers, Key: r.Key, Body: r.Value}
}

// Consume reads topics from their beginning until done, which is called after each fetch with everything read so far,
// returns true. Within a partition the records are in the order of their offsets. Topics may not exist yet. When ctx
// ends first, the error reports that and the records read so far are returned with it. The test fails if docs/schema does not describe one.
func (b *Broker) Consume(ctx context.Context, done func(records []Record) bool, topics ...string) ([]Record, error) {
	b.tb.Helper()
	client := b.client(
		kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.UnknownTopicRetries(-1),
		kgo.MetadataMaxAge(time.Second), // how soon a topic that appears is noticed
	)
	defer client.Close()
	var records []Record
	defer func() { // not meanwhile: it takes long on a busy machine, and ctx ends
		for n := range records {
			asyncapi.Expect(b.tb, "kafka", records[n].Message())
		}
	}()
	for !done(records) {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return records, fmt.Errorf("consume %v: %d records, then %w", topics, len(records), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, record(r))
		})
	}
	return records, nil
}

// ReadAll reads what topics hold at the time of the call, from beginning to end.
func (b *Broker) ReadAll(ctx context.Context, topics ...string) ([]Record, error) {
	b.tb.Helper()
	client := b.client()
	defer client.Close()
	admin := kadm.NewClient(client)
	starts, err := admin.ListStartOffsets(ctx, topics...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("start offsets of %v: %w", topics, err)
	}
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("end offsets of %v: %w", topics, err)
	}
	return b.Consume(ctx, func(records []Record) bool {
		next := map[string]map[int32]int64{}
		for _, r := range records {
			if next[r.Topic] == nil {
				next[r.Topic] = map[int32]int64{}
			}
			next[r.Topic][r.Partition] = r.Offset + 1
		}
		complete := true
		ends.Each(func(end kadm.ListedOffset) {
			start, _ := starts.Lookup(end.Topic, end.Partition)
			if end.Offset > start.Offset && next[end.Topic][end.Partition] < end.Offset {
				complete = false
			}
		})
		return complete
	}, topics...)
}

func record(r *kgo.Record) Record {
	headers := make(map[string]string, len(r.Headers))
	for _, h := range r.Headers {
		headers[h.Key] = string(h.Value)
	}
	return Record{
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset,
		Key: r.Key, Value: r.Value, Headers: headers, Timestamp: r.Timestamp,
		Compression: []string{"none", "gzip", "snappy", "lz4", "zstd"}[r.Attrs.CompressionType()],
	}
}

// Count returns how many records a topic holds.
func (b *Broker) Count(ctx context.Context, topic string) (int64, error) {
	b.tb.Helper()
	client := b.client()
	defer client.Close()
	admin := kadm.NewClient(client)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	var n int64
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(end.Topic, end.Partition)
		n += end.Offset - start.Offset
	})
	return n, ends.Error()
}

// Assigned returns how many partitions each member of a consumer group has.
func (b *Broker) Assigned(ctx context.Context, group string) (each []int, err error) {
	b.tb.Helper()
	client := b.client()
	defer client.Close()
	groups, err := kadm.NewClient(client).DescribeGroups(ctx, group)
	if err := cmp.Or(err, groups.Error()); err != nil {
		return nil, err
	}
	for _, member := range groups[group].Members {
		n := 0
		if assigned, ok := member.Assigned.AsConsumer(); ok {
			for _, topic := range assigned.Topics {
				n += len(topic.Partitions)
			}
		}
		each = append(each, n)
	}
	return each, nil
}
