package kafka

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/segmentio/kafka-go"

	"github.com/kubeferry/kubeferry/sinks"
)

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker]: it logs in, connects to every broker by the address that the cluster gives for it,
// and looks for the topic if its name holds no placeholder. Whether it may write shows only once it writes.
func (s *Sink) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	topics := []string{} // none, since nil would be all
	if s.topic.Fixed() {
		topics = append(topics, s.config.Topic)
	}
	response, err := s.client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return advise(fmt.Errorf("read metadata from %s: %w", s.brokers, err))
	}
	for _, broker := range response.Brokers {
		address := net.JoinHostPort(broker.Host, strconv.Itoa(broker.Port))
		conn, err := s.transport.with(nil).Dial(ctx, "tcp", address)
		if err != nil {
			return sinks.Transient(reasonOf(err), fmt.Errorf(
				"broker %d cannot be reached at %s, where %s says it is: check advertised.listeners: %w", broker.ID, address, s.brokers, err))
		}
		_ = conn.Close()
	}
	for _, topic := range response.Topics {
		if topic.Error == nil {
			continue
		}
		switch reason := reasonOf(topic.Error); {
		case reason != sinks.ReasonNotFound:
			return advise(fmt.Errorf("topic %q: %w", s.config.Topic, topic.Error))
		case !s.config.CreateTopics:
			return sinks.Transient(reason, fmt.Errorf("topic %q does not exist: create it, or set createTopics: true", s.config.Topic))
		}
	}
	return nil
}

func advise(err error) error {
	return sinks.Advise(transient(err), "check sasl and tls.certFile, and that the user may describe and write",
		"check brokers, and that this port speaks what tls and sasl say")
}
