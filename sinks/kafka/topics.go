package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubeferry/kubeferry/sinks"
)

// newTopic is for how long brokers may not know of a topic that was created.
const newTopic = time.Minute

// partitions is a topic's list of partitions, or why there is none.
type partitions struct {
	ids     []int
	leaders map[int]kafka.Broker
	err     error
}

// lookup returns the partitions of topics from the metadata that requests are routed by. A topic that is missing is
// created if createTopics is set.
func (s *Sink) lookup(ctx context.Context, topics []string) (map[string]partitions, error) {
	found, err := s.metadata(ctx, topics)
	if err != nil || !s.config.CreateTopics {
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
	failed, err := s.createSome(ctx, missing)
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
		p := partitions{leaders: make(map[int]kafka.Broker, len(topic.Partitions))}
		for _, partition := range topic.Partitions {
			p.ids = append(p.ids, partition.ID)
			p.leaders[partition.ID] = partition.Leader
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

// createSome creates topics as long as fewer than maxTopics exist. The result has those that do not exist then, and why.
func (s *Sink) createSome(ctx context.Context, topics []string) (map[string]error, error) {
	select {
	case s.creating <- struct{}{}:
		defer func() { <-s.creating }()
	case <-ctx.Done():
		return nil, transient(fmt.Errorf("create topics: %w", ctx.Err()))
	}
	if err := s.listTopics(ctx); err != nil {
		return nil, err
	}
	before := maps.Clone(s.counted)
	var request, refused []string
	for _, topic := range topics {
		// A topic that counts already may have been deleted since, or not show yet: it is requested again, and takes no room.
		if _, known := s.counted[topic]; known || len(s.counted) < s.config.MaxTopics {
			s.counted[topic] = time.Now()
			request = append(request, topic)
		} else {
			refused = append(refused, topic)
		}
	}
	failed, err := s.create(ctx, request)
	if err != nil {
		return nil, err
	}
	for topic := range failed {
		if requested, known := before[topic]; known {
			s.counted[topic] = requested // an earlier request may have made it
		} else {
			delete(s.counted, topic)
		}
	}
	for _, topic := range refused {
		failed[topic] = transient(fmt.Errorf("topic %q is not created, since maxTopics is %d and %d topics fit %q: create it, or raise maxTopics: %w",
			topic, s.config.MaxTopics, len(s.counted), s.config.Topic, kafka.UnknownTopicOrPartition))
	}
	return failed, nil
}

// listTopics reads which topics fit the template, whoever made them: so the bound holds across restarts, and for several sinks of one
// template. The answer has every topic of the cluster, so it is requested no more often than the sink looks for a missing topic. It may come
// from a broker that does not know the newest topics yet, so those that this sink requested shortly before count without it.
func (s *Sink) listTopics(ctx context.Context) error {
	if time.Since(s.listed) < refreshMissingTopic {
		return nil
	}
	response, err := s.client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return transient(fmt.Errorf("read metadata from %s: %w", s.brokers, err))
	}
	s.listed = time.Now()
	counted := map[string]time.Time{}
	for topic, requested := range s.counted {
		if time.Since(requested) < newTopic {
			counted[topic] = requested
		}
	}
	fits := fitting(s.config.Topic)
	for _, topic := range response.Topics {
		if !topic.Internal && fits.MatchString(topic.Name) {
			counted[topic.Name] = s.counted[topic.Name]
		}
	}
	s.counted = counted
	return nil
}

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// fitting returns an expression for the names that a template can have.
func fitting(template string) *regexp.Regexp {
	literals := placeholder.Split(template, -1)
	for i, literal := range literals {
		literals[i] = regexp.QuoteMeta(literal)
	}
	return regexp.MustCompile("^" + strings.Join(literals, "[a-zA-Z0-9._-]+") + "$")
}

// create makes topics as newTopics says, else with the brokers' num.partitions and default.replication.factor (KIP-464), and waits until
// the transport has them. The result has those that could not be made.
func (s *Sink) create(ctx context.Context, topics []string) (map[string]error, error) {
	failed := map[string]error{}
	if len(topics) == 0 {
		return failed, nil
	}
	request := &kafka.CreateTopicsRequest{}
	for _, topic := range topics {
		request.Topics = append(request.Topics, s.config.NewTopics.of(topic))
	}
	response, err := s.client.CreateTopics(ctx, request)
	if err != nil {
		return nil, transient(fmt.Errorf("create topics: %w", err))
	}
	for topic, err := range response.Errors {
		switch {
		case err == nil:
			s.log.Info("created topic", "topic", topic)
		case errors.Is(err, kafka.TopicAlreadyExists): // by another call or another program
			s.transport.renew(0)
		default:
			failed[topic] = transient(fmt.Errorf("create topic %q: %w", topic, err))
		}
	}
	return failed, nil
}

// of returns the request for a topic.
func (n *NewTopics) of(topic string) kafka.TopicConfig {
	if n == nil {
		n = &NewTopics{}
	}
	config := kafka.TopicConfig{Topic: topic, NumPartitions: cmp.Or(n.Partitions, -1), ReplicationFactor: cmp.Or(n.ReplicationFactor, -1)}
	if n.CleanupPolicy != "" {
		config.ConfigEntries = []kafka.ConfigEntry{{ConfigName: "cleanup.policy", ConfigValue: n.CleanupPolicy}}
	}
	return config
}

// topicOf returns the topic of r. A name that Kafka cannot have is the record's own fault.
func topicOf(template sinks.Template, r *sinks.Record) (string, error) {
	topic := template.Expand(&r.Fields, topicByte)
	if topic == "" || topic == "." || topic == ".." || len(topic) > maxTopic {
		return "", sinks.Permanent(sinks.ReasonEncode,
			fmt.Errorf("kafka: %.300q is no name for a topic (1 to %d characters)", topic, maxTopic))
	}
	return topic, nil
}
