package main

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// jetStream publishes a batch without waiting, then waits for its acknowledgements.
type jetStream struct {
	conn    *nats.Conn
	js      jetstream.JetStream
	subject string
}

func newJetStream(url, subject string) (*jetStream, error) {
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &jetStream{conn: conn, js: js, subject: subject}, nil
}

func (j *jetStream) send(ctx context.Context, first, n int, body []byte) error {
	futures := make([]jetstream.PubAckFuture, n)
	for i := range futures {
		message := nats.NewMsg(fmt.Sprintf("%s.%d", j.subject, first+i))
		message.Data = body
		message.Header.Set(jetstream.MsgIDHeader, fmt.Sprint("direct/", first+i))
		var err error
		if futures[i], err = j.js.PublishMsgAsync(message); err != nil {
			return err
		}
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (j *jetStream) close() { j.conn.Close() }
