package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/segmentio/kafka-go"

	"github.com/kubeferry/kubeferry/sinks"
)

// partitions is a topic's list of partitions, or why there is none.
type partitions struct {
	ids []int
	err error
}

// lookup returns the partitions of topics from the metadata that requests are routed by. A topic that is missing is
// made if the configuration says so.
func (s *Sink) lookup(ctx context.Context, topics []string) (map[string]partitions, error) {
	found, err := s.metadata(ctx, topics)
	if err != nil || !s.createTopics {
		return found, err
	}
	var missing []string
	for _, topic := range topics {
		if err := found[topic].err; err != nil && reasonOf(err) == sinks.ReasonNotFound {
			missing = append(missing, topic)
		}
	}
	if len(missing) == 0 {
		return found, nil
	}
	failed, err := s.create(ctx, missing)
	if err != nil {
		return nil, err
	}
	if found, err = s.metadata(ctx, topics); err != nil {
		return nil, err
	}
	for topic, err := range failed {
		if found[topic].err != nil {
			found[topic] = partitions{err: err}
		}
	}
	return found, nil
}

func (s *Sink) metadata(ctx context.Context, topics []string) (map[string]partitions, error) {
	response, err := s.client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, transient(fmt.Errorf("read metadata from %s: %w", s.brokers, err))
	}
	found := make(map[string]partitions, len(topics))
	for _, topic := range response.Topics {
		var p partitions
		for _, partition := range topic.Partitions {
			p.ids = append(p.ids, partition.ID)
		}
		// The order must not depend on who is alive: the partition of a key would.
		slices.Sort(p.ids)
		switch {
		case topic.Error != nil:
			p.err = transient(fmt.Errorf("topic %q: %w", topic.Name, topic.Error))
		case len(p.ids) == 0:
			p.err = transient(fmt.Errorf("topic %q has no partitions yet: %w", topic.Name, kafka.LeaderNotAvailable))
		}
		found[topic.Name] = p
	}
	return found, nil
}

// create makes topics with the brokers' num.partitions and default.replication.factor (KIP-464), and waits until
// the transport knows them. The result says which could not be made.
func (s *Sink) create(ctx context.Context, topics []string) (map[string]error, error) {
	request := &kafka.CreateTopicsRequest{}
	for _, topic := range topics {
		request.Topics = append(request.Topics, kafka.TopicConfig{Topic: topic, NumPartitions: -1, ReplicationFactor: -1})
	}
	response, err := s.client.CreateTopics(ctx, request)
	if err != nil {
		return nil, transient(fmt.Errorf("create topics: %w", err))
	}
	failed := map[string]error{}
	for topic, err := range response.Errors {
		switch {
		case err == nil:
			s.log.Info("created topic", "topic", topic)
		case errors.Is(err, kafka.TopicAlreadyExists): // by another call or another program
			s.refresh(0)
		default:
			failed[topic] = transient(fmt.Errorf("create topic %q: %w", topic, err))
		}
	}
	return failed, nil
}

// fixed returns the topic of a template without placeholders, else "".
func fixed(topic sinks.Template) string {
	if topic.Fixed() {
		return topic.Expand(&sinks.Fields{}, topicByte)
	}
	return ""
}

// choose returns the partition of r's message.
func (s *Sink) choose(r *sinks.Record, ids []int) int {
	key, ok := s.keyOf(r)
	if !ok {
		return ids[int(s.turn.Add(1)-1)%len(ids)]
	}
	return partitionOf(key, ids)
}

// partitionOf is the choice of Java's client.
func partitionOf(key string, ids []int) int {
	return kafka.Murmur2Balancer{Consistent: true}.Balance(kafka.Message{Key: []byte(key)}, ids...)
}

// groups sorts the batch by topic and partition. Records without a place get their error here.
func (d *delivery) groups(ctx context.Context) []*group {
	topics := make([]string, len(d.batch))
	distinct := map[string]struct{}{}
	for i := range d.batch {
		topics[i], d.errs[i] = topicOf(d.sink.topic, &d.batch[i])
		if d.errs[i] == nil {
			distinct[topics[i]] = struct{}{}
		}
	}
	if len(distinct) == 0 {
		return nil
	}
	found, err := d.sink.lookup(ctx, slices.Sorted(maps.Keys(distinct)))
	if err != nil && !errors.Is(err, context.Canceled) {
		// Whatever the reason: a pool that failed to start tries again only in its own time.
		d.sink.refresh(refreshAfterError)
	}

	type place struct {
		topic     string
		partition int
	}
	places := map[place]*group{}
	var groups []*group
	var missing error
	for i := range d.batch {
		switch topic := found[topics[i]]; {
		case d.errs[i] != nil:
		case err != nil:
			d.errs[i] = err
		case topic.err != nil:
			d.errs[i], missing = topic.err, topic.err
		default:
			p := place{topics[i], d.sink.choose(&d.batch[i], topic.ids)}
			g := places[p]
			if g == nil {
				g = &group{delivery: d, topic: p.topic, partition: p.partition}
				places[p] = g
				groups = append(groups, g)
			}
			g.records = append(g.records, i)
		}
	}
	if missing != nil {
		d.sink.refreshFor(missing)
	}
	return groups
}
