// Command jetstream keeps a table of what exists and a log of what happened, from a stream. The server knows how far it has read.
package main

import (
	"context"
	"flag"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/consume"
	"github.com/kubeferry/kubeferry/examples/go/store"
)

func main() {
	url := flag.String("url", "nats://localhost:4222", "server")
	stream := flag.String("stream", "KUBEFERRY", "stream")
	name := flag.String("consumer", "table", "durable consumer")
	file := flag.String("db", "table.db", "SQLite database")
	flag.Parse()
	ctx := context.Background()
	db, err := store.Open(ctx, *file)
	if err != nil {
		log.Fatal(err)
	}
	connection, err := nats.Connect(*url, nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(connection)
	if err != nil {
		log.Fatal(err)
	}
	for {
		if err := follow(ctx, js, *stream, *name, db); err != nil {
			log.Print(err) // the server or the stream is away
			time.Sleep(time.Second)
		}
	}
}

// follow stores what a durable consumer delivers, until that fails. What was not acknowledged comes again, perhaps behind later messages.
func follow(ctx context.Context, js jetstream.JetStream, stream, name string, db *store.Store) error {
	consumer, err := js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 10 * time.Second, MaxAckPending: 1000,
	})
	if err != nil {
		return err
	}
	for {
		batch, err := consumer.Fetch(500, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		var messages []jetstream.Msg
		var records []consume.Record
		for m := range batch.Messages() {
			messages = append(messages, m)
			read, err := consume.Decode(m.Headers().Get, m.Data())
			if err != nil { // an object may be nested too deeply to be read
				log.Printf("a message on %s: %v", m.Subject(), err)
			}
			records = append(records, read...)
		}
		if err := db.Apply(ctx, records); err != nil {
			log.Fatal(err)
		}
		for _, m := range messages {
			if err := m.Ack(); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
	}
}
