package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/kubeferry/kubeferry/sinks"
)

// choose returns the partitions that r goes to. A gap or a mark goes to all of them, because each member of a consumer group needs it.
func (s *Sink) choose(r *sinks.Record, ids []int) []int {
	key, ok := s.config.keyOf(r)
	switch {
	case notice(r):
		return ids
	case ok:
		return []int{partitionOf(key, ids)}
	default:
		n := int(s.turn.Add(1)-1) % len(ids)
		return ids[n : n+1]
	}
}

// notice reports whether r is a gap or a mark.
func notice(r *sinks.Record) bool { return r.Fields.Type == "GAP" || r.Fields.Type == "SNAPSHOT" }

// partitionOf is the choice of Java's client (BuiltInPartitioner.partitionForKey), so that other producers of the same
// keys agree.
func partitionOf(key string, ids []int) int {
	return kafka.Murmur2Balancer{Consistent: true}.Balance(kafka.Message{Key: []byte(key)}, ids...)
}

// groups sorts the batch by topic and partition. Records without a partition get their error here.
func (s *Sink) groups(ctx context.Context, batch []sinks.Record, errs []error) []*group {
	topics := make([]string, len(batch))
	distinct := map[string]struct{}{}
	for i := range batch {
		topics[i], errs[i] = topicOf(s.topic, &batch[i])
		if errs[i] == nil {
			distinct[topics[i]] = struct{}{}
		}
	}
	if len(distinct) == 0 {
		return nil
	}
	found, err := s.lookup(ctx, slices.Sorted(maps.Keys(distinct)))
	if err != nil && !errors.Is(err, context.Canceled) {
		// Whatever the reason: a pool that failed to start tries again only in its own time.
		s.transport.renew(refreshAfterError)
	}

	type place struct {
		topic     string
		partition int
	}
	places := map[place]*group{}
	var groups []*group
	var missing error
	notices := slices.ContainsFunc(batch, func(r sinks.Record) bool { return notice(&r) })
	for i := range batch {
		switch topic := found[topics[i]]; {
		case errs[i] != nil:
		case err != nil:
			errs[i] = err
		case topic.err != nil:
			errs[i], missing = topic.err, topic.err
		default:
			for _, id := range s.choose(&batch[i], topic.ids) {
				p := place{topics[i], id}
				g := places[p]
				if g == nil {
					g = &group{sink: s, topic: p.topic, partition: p.partition, leader: topic.leaders[id], Split: sinks.Split{Batch: batch, Errs: errs}}
					if notices { // a record is in several groups
						g.Errs = make([]error, len(batch))
					}
					g.Fit, g.Request = g.fit, g.store
					places[p] = g
					groups = append(groups, g)
				}
				g.records = append(g.records, i)
			}
		}
	}
	if missing != nil {
		s.refreshFor(missing)
	}
	return groups
}

// group are the records of a Deliver call that go to one partition. One goroutine owns it.
type group struct {
	sinks.Split
	sink      *Sink
	topic     string
	partition int
	leader    kafka.Broker // zero if the metadata names none
	records   []int        // indices into Batch, in order
}

// fit returns how many of the records go into the next request: as many as maxBytes allows, but at least one.
func (g *group) fit(records []*sinks.Record) int {
	total := batchOverhead
	for n, r := range records {
		size := g.sink.config.sizeOf(r)
		total += size
		switch {
		case size > maxRecord && n == 0:
			return 1
		case n > 0 && (size > maxRecord || total > int(g.sink.config.Batch.MaxBytes)):
			return n
		}
	}
	return len(records)
}

// store sends one request. If the broker refuses it because of a record in it, and that record stands alone, the error
// is permanent.
func (g *group) store(ctx context.Context, records []*sinks.Record) (halve bool, err error) {
	err = g.produce(ctx, records)
	if err == nil || !g.sink.config.ofTheRecord(err) {
		return false, err
	}
	reason := reasonOf(err)
	if reason == sinks.ReasonTooLarge {
		r := records[0]
		err = fmt.Errorf("a record of %d bytes (its value has %d) is larger than the brokers accept: %w", g.sink.config.sizeOf(r), len(r.Body), err)
	}
	return true, sinks.Permanent(reason, fmt.Errorf("topic %q: %w", g.topic, err))
}

// produce sends one request. Its error is one for which [Config.ofTheRecord] returns true, or is classified as transient.
func (g *group) produce(ctx context.Context, records []*sinks.Record) error {
	s := g.sink
	select {
	case s.inFlight <- struct{}{}:
		defer func() { <-s.inFlight }()
	case <-ctx.Done():
		return g.wrap(ctx.Err())
	}
	if err := sinks.Fence(ctx); err != nil { // the wait may have been long
		return g.wrap(err)
	}
	if len(records) == 1 && s.config.sizeOf(records[0]) > maxRequest {
		return kafka.MessageSizeTooLarge
	}
	began := time.Now()
	if err := s.hung.begin(g.leader, began); err != nil {
		return g.wrap(err)
	}
	response, err := s.client.Produce(ctx, &kafka.ProduceRequest{
		Topic: g.topic, Partition: g.partition, RequiredAcks: acks[s.config.RequiredAcks],
		Compression: compressions[s.config.Compression], Records: kafka.NewRecordReader(s.config.messages(records)...),
	})
	if err == nil && response != nil { // with requiredAcks 0 there is no answer
		err = response.Error
	}
	s.hung.end(g.leader, err, began, time.Now())
	if err == nil || s.config.ofTheRecord(err) {
		return err
	}
	if s.config.keyless(err) {
		err = fmt.Errorf("%w: a compacted topic takes no record without a key: set key, or the topic's cleanup.policy to delete", err)
	}
	if errors.Is(err, protocol.ErrNoTopic) || errors.Is(err, protocol.ErrNoPartition) {
		// It was there a moment ago: the pool has been replaced meanwhile, and the new one has no metadata yet.
		// The reason for that is the useful error.
		if _, why := s.metadata(ctx, []string{g.topic}); why != nil {
			err = why
		}
	}
	s.refreshFor(err)
	return g.wrap(err)
}

func (g *group) wrap(err error) error {
	return transient(fmt.Errorf("send to topic %q, partition %d: %w", g.topic, g.partition, err))
}
