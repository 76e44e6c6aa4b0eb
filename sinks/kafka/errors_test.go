package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestReason(t *testing.T) {
	for _, test := range []struct {
		err      error
		want     sinks.Reason
		ofRecord bool
	}{
		{kafka.MessageSizeTooLarge, sinks.ReasonTooLarge, true},
		{kafka.RecordListTooLarge, sinks.ReasonTooLarge, true},
		{kafka.InvalidRecord, sinks.ReasonRejected, true},
		{kafka.InvalidMessage, sinks.ReasonRejected, false},
		{kafka.InvalidTimestamp, sinks.ReasonRejected, false},
		{kafka.UnknownTopicOrPartition, sinks.ReasonNotFound, false},
		{kafka.NotLeaderForPartition, sinks.ReasonUnavailable, false},
		{kafka.LeaderNotAvailable, sinks.ReasonUnavailable, false},
		{kafka.NotEnoughReplicas, sinks.ReasonUnavailable, false},
		{kafka.NotEnoughReplicasAfterAppend, sinks.ReasonUnavailable, false},
		{kafka.KafkaStorageError, sinks.ReasonUnavailable, false},
		{kafka.BrokerNotAvailable, sinks.ReasonUnavailable, false},
		{kafka.RequestTimedOut, sinks.ReasonTimeout, false},
		{kafka.ThrottlingQuotaExceeded, sinks.ReasonThrottled, false},
		{kafka.TopicAuthorizationFailed, sinks.ReasonUnauthorized, false},
		{kafka.SASLAuthenticationFailed, sinks.ReasonUnauthorized, false},
		{kafka.UnsupportedSASLMechanism, sinks.ReasonUnauthorized, false},
		{kafka.UnsupportedCompressionType, sinks.ReasonRejected, false},
		{produce.NewError(protocol.NewErrNoTopic("t")), sinks.ReasonNotFound, false},
		{produce.NewError(protocol.NewErrNoLeader("t", 0)), sinks.ReasonUnavailable, false},
		{&net.OpError{Op: "dial", Err: &os.SyscallError{Err: syscall.ECONNREFUSED}}, sinks.ReasonUnreachable, false},
		{&net.DNSError{IsNotFound: true}, sinks.ReasonUnreachable, false},
		{io.ErrUnexpectedEOF, sinks.ReasonUnreachable, false},
		{io.EOF, sinks.ReasonUnreachable, false},
		{os.ErrDeadlineExceeded, sinks.ReasonTimeout, false},
		{context.DeadlineExceeded, sinks.ReasonTimeout, false},
		{context.Canceled, sinks.ReasonCancelled, false},
		{sinks.Transient(sinks.ReasonUnauthorized, errors.New("read passwordFile")), sinks.ReasonUnauthorized, false},
		{errors.New("something"), sinks.ReasonOther, false},
	} {
		err := fmt.Errorf("kafka.(*Client).Produce: %w", test.err)
		if got := reasonOf(err); got != test.want {
			t.Errorf("%v: got %s, want %s", test.err, got, test.want)
		}
		if got := (&Config{Key: keyObject}).ofTheRecord(err); got != test.ofRecord {
			t.Errorf("%v: got of the record %t, want %t", test.err, got, test.ofRecord)
		}
		if class := sinks.Classify(transient(err)); class.Permanent || class.Reason != test.want {
			t.Errorf("%v: got %s, permanent %t", test.err, class.Reason, class.Permanent)
		}
	}
}

// TestKeyless has records without a key refused: without one configured, that is no record's fault.
func TestKeyless(t *testing.T) {
	for _, key := range []string{keyObject, keyUID, keyNamespace, keyNone} {
		e := Config{Key: key}
		for _, code := range []kafka.Error{kafka.InvalidRecord, kafka.InvalidMessage, kafka.MessageSizeTooLarge} {
			err := fmt.Errorf("kafka.(*Client).Produce: %w", code)
			wantKeyless := key == keyNone && code != kafka.MessageSizeTooLarge
			wantOfRecord := code == kafka.MessageSizeTooLarge || code == kafka.InvalidRecord && key != keyNone
			if e.keyless(err) != wantKeyless || e.ofTheRecord(err) != wantOfRecord {
				t.Errorf("key %s, %v: got keyless %t, of the record %t", key, code, e.keyless(err), e.ofTheRecord(err))
			}
		}
	}
}
