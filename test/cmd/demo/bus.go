package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// streamName is the stream that kubeferry creates.
const streamName = "KUBEFERRY"

// bus is a NATS server inside this process, and a connection to it.
type bus struct {
	server *server.Server
	conn   *nats.Conn
}

func startBus(dir string) (*bus, error) {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: filepath.Join(dir, "nats"),
		NoSigs: true, NoLog: true,
	})
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	b := &bus{server: srv}
	srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		b.stop()
		return nil, errors.New("NATS server: it does not accept connections")
	}
	if b.conn, err = nats.Connect(b.url(), nats.Timeout(30*time.Second)); err != nil {
		b.stop()
		return nil, fmt.Errorf("connect to the NATS server: %w", err)
	}
	return b, nil
}

func (b *bus) url() string { return "nats://" + b.server.Addr().String() }

func (b *bus) stop() {
	if b.conn != nil {
		b.conn.Close()
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
}

// read passes the records of the stream on as they arrive, from its beginning, until ctx or the demo ends.
func (b *bus) read(ctx context.Context) (<-chan *record, func(), error) {
	js, err := jetstream.New(b.conn)
	if err != nil {
		return nil, nil, err
	}
	stream, err := awaitStream(ctx, js)
	if err != nil {
		return nil, nil, err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, nil, fmt.Errorf("read stream %s: %w", streamName, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	records := make(chan *record)
	consuming, err := consumer.Consume(func(msg jetstream.Msg) {
		r := parse(msg.Subject(), msg.Data())
		select {
		case records <- r:
		case <-ctx.Done():
		}
	})
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("read stream %s: %w", streamName, err)
	}
	return records, func() { cancel(); consuming.Stop() }, nil
}

// awaitStream waits until kubeferry has created its stream, which it does for its first record.
func awaitStream(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("kubeferry has created no stream within a minute"))
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		stream, err := js.Stream(ctx, streamName)
		if err == nil {
			return stream, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		}
	}
}
