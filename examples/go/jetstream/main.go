// Command jetstream keeps a table of what exists and a log of what happened, from a stream, with a durable consumer.
package main

import (
	"context"
	"flag"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/examples/go/events"
	"github.com/kubeferry/kubeferry/examples/go/store"
)

func main() {
	url := flag.String("url", "nats://localhost:4222", "server")
	stream := flag.String("stream", "k8s", "stream")
	durable := flag.String("durable", "table", "name of the consumer")
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
	consumer, err := js.CreateOrUpdateConsumer(ctx, *stream, jetstream.ConsumerConfig{
		Durable: *durable, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1000,
		AckWait: 10 * time.Second, // what was under way when this program was killed comes after that, behind later records
	})
	if err != nil {
		log.Fatal(err)
	}
	for {
		batch, err := consumer.Fetch(500, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			log.Print(err) // the server is away
			time.Sleep(time.Second)
			continue
		}
		var messages []jetstream.Msg
		var arrivals []store.Arrival
		for m := range batch.Messages() {
			headers := map[string]string{}
			for name := range m.Headers() {
				headers[name] = m.Headers().Get(name)
			}
			record, err := events.Read("ce-", headers, m.Data())
			if err != nil {
				log.Fatal(err)
			}
			meta, err := m.Metadata()
			if err != nil {
				log.Fatal(err)
			}
			messages = append(messages, m)
			arrivals = append(arrivals, store.Arrival{Record: record, Position: int64(meta.Sequence.Stream)})
		}
		if err := db.Apply(ctx, arrivals); err != nil {
			log.Fatal(err)
		}
		for _, m := range messages {
			if err := m.Ack(); err != nil {
				log.Print(err) // it comes again
			}
		}
	}
}
