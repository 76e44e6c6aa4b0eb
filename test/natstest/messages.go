package natstest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
)

// Message is a message as a stream stores it.
type Message struct {
	Subject  string
	Sequence uint64
	Header   nats.Header
	Data     []byte
	Time     time.Time
}

// access is how a test gets at what servers store.
type access struct {
	tb    testing.TB
	urls  string
	login []nats.Option
}

// CreateStream creates a JetStream stream with file storage and the server's defaults for the rest.
func (a *access) CreateStream(ctx context.Context, name string, subjects ...string) {
	a.tb.Helper()
	a.CreateStreamWith(ctx, jetstream.StreamConfig{Name: name, Subjects: subjects})
}

// CreateStreamWith creates a JetStream stream.
func (a *access) CreateStreamWith(ctx context.Context, config jetstream.StreamConfig) {
	a.tb.Helper()
	conn, js := a.connect()
	defer conn.Close()
	if _, err := js.CreateStream(ctx, config); err != nil {
		a.tb.Fatalf("create stream %q: %v", config.Name, err)
	}
}

// UpdateStream changes a JetStream stream.
func (a *access) UpdateStream(ctx context.Context, config jetstream.StreamConfig) {
	a.tb.Helper()
	conn, js := a.connect()
	defer conn.Close()
	if _, err := js.UpdateStream(ctx, config); err != nil {
		a.tb.Fatalf("update stream %q: %v", config.Name, err)
	}
}

// StreamInfo returns the server's description of a stream.
func (a *access) StreamInfo(ctx context.Context, name string) *jetstream.StreamInfo {
	a.tb.Helper()
	conn, js := a.connect()
	defer conn.Close()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		a.tb.Fatalf("stream %q: %v", name, err)
	}
	return stream.CachedInfo()
}

// connectTimeout is for a server that other tests keep from answering; nats.go's own is two seconds.
const connectTimeout = 30 * time.Second

func (a *access) connect() (*nats.Conn, jetstream.JetStream) {
	a.tb.Helper()
	conn, err := nats.Connect(a.urls, append([]nats.Option{nats.Timeout(connectTimeout)}, a.login...)...)
	if err != nil {
		a.tb.Fatalf("connect to NATS: %v", err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		a.tb.Fatalf("JetStream: %v", err)
	}
	return conn, js
}

// ReadAll returns what a stream holds at the time of the call, in order.
func (a *access) ReadAll(ctx context.Context, stream string) ([]Message, error) {
	a.tb.Helper()
	conn, js := a.connect()
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
	return a.consume(ctx, str, func(messages []Message) bool {
		return info.State.Msgs == 0 || len(messages) > 0 && messages[len(messages)-1].Sequence >= last
	})
}

// Consume reads a stream from its beginning until done, which is called after each message with everything read so far,
// returns true. When ctx ends first, the error wraps its error and the messages read so far are returned with it.
func (a *access) Consume(ctx context.Context, done func(messages []Message) bool, stream string) ([]Message, error) {
	a.tb.Helper()
	conn, js := a.connect()
	defer conn.Close()
	str, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", stream, err)
	}
	return a.consume(ctx, str, done)
}

// consume reads with a plain consumer, batch by batch: an ordered one is deleted while a batch takes longer than five seconds, and notices
// that only after half a minute.
func (a *access) consume(ctx context.Context, stream jetstream.Stream, done func([]Message) bool) ([]Message, error) {
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: 10 * time.Minute, // done may take long
	})
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	var messages []Message
	defer func() { // not meanwhile: it takes long on a busy machine, and ctx ends
		for n := range messages {
			Expect(a.tb, messages[n].Header, messages[n].Data)
		}
	}()
	for !done(messages) {
		if err := a.fetch(ctx, consumer, &messages, done); err != nil {
			state, infoErr := stream.Info(context.WithoutCancel(ctx))
			if infoErr != nil {
				return messages, errors.Join(err, infoErr)
			}
			return messages, fmt.Errorf("%d of %d messages, the last of them %d, then %w", len(messages), state.State.Msgs, state.State.LastSeq, err)
		}
	}
	return messages, nil
}

// fetch reads one batch, or what comes of it in 5 s.
func (a *access) fetch(ctx context.Context, consumer jetstream.Consumer, messages *[]Message, done func([]Message) bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	one, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	batch, err := consumer.Fetch(500, jetstream.FetchContext(one))
	switch {
	case errors.Is(err, jetstream.ErrInvalidOption): // the deadline has just passed
		<-ctx.Done()
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	defer func() {
		cancel()
		for range batch.Messages() { // until its goroutine has ended
		}
	}()
	for msg := range batch.Messages() {
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		if want := uint64(len(*messages)) + 1; meta.Sequence.Consumer != want {
			return fmt.Errorf("message %d of the consumer came instead of %d", meta.Sequence.Consumer, want)
		}
		*messages = append(*messages, Message{
			Subject: msg.Subject(), Sequence: meta.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(), Time: meta.Timestamp,
		})
		if done(*messages) {
			return nil
		}
	}
	switch err := batch.Error(); {
	case one.Err() != nil:
		return nil
	case errors.Is(err, nats.ErrNoResponders): // a cluster elects the consumer's leader
		time.Sleep(50 * time.Millisecond)
		return nil
	default:
		return err
	}
}

// Message is what docs/schema describes of the message.
func (m *Message) Message() asyncapi.Message {
	message := asyncapi.Message{Headers: map[string]string{}, Body: m.Data}
	for name := range m.Header {
		message.Headers[name] = m.Header.Get(name)
	}
	return message
}

// Expect fails a test unless docs/schema describes a message. What is read from a stream is checked so; a subscriber of core NATS calls it.
func Expect(tb testing.TB, header nats.Header, body []byte) {
	tb.Helper()
	m := Message{Header: header, Data: body}
	asyncapi.Expect(tb, "nats", m.Message())
}
