package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/kubeferry/kubeferry/sinks"
)

// ofTheRecord reports whether a broker refused a batch for the sake of a record in it. Everything else would fail
// any record. The codes are in the protocol guide, https://kafka.apache.org/protocol#protocol_error_codes; that
// InvalidMessage (CORRUPT_MESSAGE) counts as retriable there is for network corruption: older brokers also answer it
// to a record without a key in a compacted topic.
func ofTheRecord(err error) bool {
	var code kafka.Error
	if !errors.As(err, &code) {
		return false
	}
	switch code {
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidRecord, kafka.InvalidTimestamp, kafka.InvalidMessage:
		return true
	default:
		return false
	}
}

// staleMetadata reports whether err may be mended by knowing the cluster better.
func staleMetadata(err error) bool {
	switch reason := reasonOf(err); reason {
	case sinks.ReasonUnreachable, sinks.ReasonUnavailable, sinks.ReasonTimeout:
		return true
	default:
		return false
	}
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
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return sinks.Classify(err).Reason
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNREFUSED):
		return sinks.ReasonUnreachable
	default:
		return sinks.Classify(err).Reason
	}
}

// tlsTrouble reports whether a connection failed over its certificate.
func tlsTrouble(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate)
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
