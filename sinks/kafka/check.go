package kafka

import (
	"context"
	"errors"
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
	request := &kafka.MetadataRequest{}
	if s.fixedTopic != "" {
		request.Topics = []string{s.fixedTopic}
	}
	response, err := s.client.Metadata(ctx, request)
	if err != nil {
		return advise(fmt.Errorf("read metadata from %s: %w", s.brokers, err))
	}
	for _, broker := range response.Brokers {
		address := net.JoinHostPort(broker.Host, strconv.Itoa(broker.Port))
		conn, err := s.transport.Dial(ctx, "tcp", address)
		if err != nil {
			return sinks.Transient(reasonOf(err), fmt.Errorf(
				"broker %d cannot be reached at %s, where %s says it is: check advertised.listeners: %w", broker.ID, address, s.brokers, err))
		}
		_ = conn.Close()
	}
	for _, topic := range response.Topics {
		if topic.Error != nil && topic.Name == s.fixedTopic {
			return s.checkMissing(ctx, topic.Error)
		}
	}
	return nil
}

// checkMissing lets the brokers validate the creation of the topic, if createTopics is set.
func (s *Sink) checkMissing(ctx context.Context, why error) error {
	if reasonOf(why) != sinks.ReasonNotFound {
		return advise(fmt.Errorf("topic %q: %w", s.fixedTopic, why))
	}
	if !s.config.CreateTopics {
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("topic %q does not exist: create it, or set createTopics: true", s.fixedTopic))
	}
	response, err := s.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics:       []kafka.TopicConfig{{Topic: s.fixedTopic, NumPartitions: -1, ReplicationFactor: -1}},
		ValidateOnly: true,
	})
	if err == nil {
		err = response.Errors[s.fixedTopic]
	}
	if err == nil || errors.Is(err, kafka.TopicAlreadyExists) {
		return nil
	}
	return advise(fmt.Errorf("topic %q does not exist and cannot be created: %w", s.fixedTopic, err))
}

// advise adds what to do about err.
func advise(err error) error {
	var code kafka.Error
	advice := ""
	switch reason := reasonOf(err); {
	case errors.As(err, &code) && code == kafka.SASLAuthenticationFailed:
		advice = "check sasl.username and sasl.password or sasl.passwordFile"
	case errors.As(err, &code) && code == kafka.UnsupportedSASLMechanism:
		advice = "set sasl.mechanism to one that the brokers have"
	case errors.As(err, &code) && reason == sinks.ReasonUnauthorized:
		advice = "give the user the right to describe, write and, with createTopics, create it"
	case errors.As(err, &code):
		advice = "see the brokers"
	case reason == sinks.ReasonUnauthorized:
		advice = "check tls.certFile and tls.keyFile: the broker refuses the certificate"
	case reason == sinks.ReasonUnreachable, reason == sinks.ReasonTimeout:
		advice = "check brokers, and that this port speaks what tls and sasl say"
	}
	return sinks.Advise(transient(err), advice)
}
