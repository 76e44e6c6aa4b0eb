// Command jetstream keeps a table of what exists and a log of what happened, from a stream. How far it has read is in the database.
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
		if err := follow(ctx, js, *stream, db); err != nil {
			log.Print(err) // the server or the stream is away
			time.Sleep(time.Second)
		}
	}
}

// follow makes a consumer that begins with the last message that is stored, and stores what it delivers, until a message is missing. Of
// a durable consumer that one would come later, behind changes that were made after it.
func follow(ctx context.Context, js jetstream.JetStream, name string, db *store.Store) error {
	position, err := db.Position(ctx)
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(max(position, 1)),
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Minute, MemoryStorage: true,
	})
	if err != nil {
		return err
	}
	for delivered := uint64(0); ; {
		batch, err := consumer.Fetch(500, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		var arrivals []store.Arrival
		gapless := true
		last := position
		for m := range batch.Messages() {
			arrival, number := read(m)
			if number != delivered+1 {
				break // one was lost on its way
			}
			gapless = gapless && arrival.Position <= last+1
			delivered, last = number, arrival.Position
			arrivals = append(arrivals, arrival)
		}
		if len(arrivals) == 0 || !gapless {
			stream, err := js.Stream(ctx, name)
			if err != nil {
				return err
			}
			state := stream.CachedInfo().State
			if first := int64(state.FirstSeq); position > 0 && first > position+1 || position > int64(state.LastSeq) {
				log.Fatalf("the stream has lost what follows message %d: begin with an empty database, and request a snapshot", position)
			}
			if err := batch.Error(); len(arrivals) == 0 && (err != nil || position < int64(state.LastSeq)) {
				return err
			}
		}
		if err := db.Apply(ctx, arrivals); err != nil {
			log.Fatal(err)
		}
		position = last
	}
}

// read returns what a message has, and its number among those of the consumer.
func read(m jetstream.Msg) (arrival store.Arrival, number uint64) {
	headers := map[string]string{}
	for name := range m.Headers() {
		headers[name] = m.Headers().Get(name)
	}
	meta, err := m.Metadata()
	if err != nil {
		log.Fatal(err)
	}
	record, err := events.Read("ce-", headers, m.Data())
	if err != nil { // an object may be nested too deeply to be read: nothing is stored but the position
		log.Printf("message %d: %v", meta.Sequence.Stream, err)
	}
	return store.Arrival{Record: record, Position: int64(meta.Sequence.Stream)}, meta.Sequence.Consumer
}
