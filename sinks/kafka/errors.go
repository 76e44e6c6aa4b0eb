package kafka

import (
	"errors"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/kubeferry/kubeferry/sinks"
)

// ofTheRecord reports whether a broker refused a batch for the sake of a record in it. Everything else would fail
// any record, or none when it is sent again: InvalidTimestamp (the time is that of sending, so a clock or a slow
// network is at fault) and InvalidMessage (CORRUPT_MESSAGE, harmed on its way). The codes are in the protocol guide,
// https://kafka.apache.org/protocol#protocol_error_codes.
func (c *Config) ofTheRecord(err error) bool {
	var code kafka.Error
	if !errors.As(err, &code) {
		return false
	}
	switch code {
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		return true
	case kafka.InvalidRecord:
		return !c.keyless(err)
	default:
		return false
	}
}

// keyless reports whether records are refused because they have no key, as compacted topics do: a configuration error.
// A broker checks little else in a record (Kafka's LogValidator), so every refusal under key: none counts as that; older
// brokers answer InvalidMessage.
func (c *Config) keyless(err error) bool {
	var code kafka.Error
	return c.Key == keyNone && errors.As(err, &code) && (code == kafka.InvalidRecord || code == kafka.InvalidMessage)
}

// transient classifies an error that would fail any record.
func transient(err error) error {
	var classified *sinks.Error
	if err == nil || errors.As(err, &classified) {
		return err
	}
	return sinks.Transient(reasonOf(err), err)
}

func reasonOf(err error) sinks.Reason {
	var code kafka.Error
	var classified *sinks.Error
	switch {
	case errors.As(err, &classified):
		return classified.Reason
	case errors.As(err, &code):
		return reasonOfCode(code)
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition):
		return sinks.ReasonNotFound
	case errors.Is(err, protocol.ErrNoLeader):
		return sinks.ReasonUnavailable
	default:
		return sinks.Classify(err).Reason
	}
}

func reasonOfCode(code kafka.Error) sinks.Reason {
	switch code {
	case kafka.UnknownTopicOrPartition, kafka.UnknownTopicID:
		return sinks.ReasonNotFound
	case kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism, kafka.IllegalSASLState, kafka.SecurityDisabled,
		kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.BrokerAuthorizationFailed:
		return sinks.ReasonUnauthorized
	case kafka.ThrottlingQuotaExceeded:
		return sinks.ReasonThrottled
	case kafka.RequestTimedOut:
		return sinks.ReasonTimeout
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		return sinks.ReasonTooLarge
	case kafka.InvalidRecord, kafka.InvalidTimestamp, kafka.InvalidMessage, kafka.InvalidTopic, kafka.PolicyViolation,
		kafka.InvalidRequiredAcks, kafka.UnsupportedCompressionType, kafka.UnsupportedForMessageFormat,
		kafka.InvalidReplicationFactor, kafka.InvalidPartitionNumber, kafka.InvalidConfiguration, kafka.InvalidRequest:
		return sinks.ReasonRejected
	case kafka.UnsupportedVersion, kafka.Unknown:
		return sinks.ReasonOther
	default: // leaders, replicas, storage, coordinators
		return sinks.ReasonUnavailable
	}
}
