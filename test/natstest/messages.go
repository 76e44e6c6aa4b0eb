package natstest

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is a message as a stream stores it.
type Message struct {
	Subject  string
	Sequence uint64
	Header   nats.Header
	Data     []byte
	Time     time.Time
}

// ReadAll returns what a stream holds at the time of the call, in order.
func (s *Server) ReadAll(ctx context.Context, stream string) ([]Message, error) {
	s.tb.Helper()
	conn, js := s.connect()
	defer conn.Close()
	str, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", stream, err)
	}
	info, err := str.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", stream, err)
	}
	last := info.State.LastSeq
	return consume(ctx, str, func(messages []Message) bool {
		return info.State.Msgs == 0 || len(messages) > 0 && messages[len(messages)-1].Sequence >= last
	})
}

// Consume reads a stream from its beginning until done, which is asked after each message with everything read so far,
// returns true. When ctx ends first, the error says so and the messages read so far are returned with it.
func (s *Server) Consume(ctx context.Context, done func(messages []Message) bool, stream string) ([]Message, error) {
	s.tb.Helper()
	conn, js := s.connect()
	defer conn.Close()
	str, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", stream, err)
	}
	return consume(ctx, str, done)
}

func consume(ctx context.Context, stream jetstream.Stream, done func([]Message) bool) ([]Message, error) {
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, fmt.Errorf("ordered consumer: %w", err)
	}
	iterator, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("ordered consumer: %w", err)
	}
	defer iterator.Stop()
	var messages []Message
	for !done(messages) {
		msg, err := iterator.Next(jetstream.NextContext(ctx))
		if err != nil {
			return messages, fmt.Errorf("%d messages, then %w", len(messages), err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return messages, err
		}
		messages = append(messages, Message{
			Subject: msg.Subject(), Sequence: meta.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(), Time: meta.Timestamp,
		})
	}
	return messages, nil
}
