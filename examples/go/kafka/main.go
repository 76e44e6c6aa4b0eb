// Command kafka keeps a table of what exists and a log of what happened, from a topic. Several of it, with one -group, share the partitions
// and the database.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubeferry/kubeferry/consume"
	"github.com/kubeferry/kubeferry/examples/go/store"
)

func main() {
	brokers := flag.String("brokers", "localhost:9092", "host:port, comma-separated")
	topic := flag.String("topic", "k8s", "topic")
	group := flag.String("group", "table", "consumer group")
	file := flag.String("db", "table.db", "SQLite database")
	flag.Parse()
	ctx := context.Background()
	db, err := store.Open(ctx, *file)
	if err != nil {
		log.Fatal(err)
	}
	// Offsets are committed once what precedes them is stored, and partitions go to another member between two polls only.
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(*brokers, ",")...), kgo.ConsumerGroup(*group), kgo.ConsumeTopics(*topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(10*time.Second)) // after which another member gets the partitions of one that was killed
	if err != nil {
		log.Fatal(err)
	}
	for {
		fetches := client.PollRecords(ctx, 1000)
		fetches.EachError(func(_ string, _ int32, err error) { log.Print(err) }) // it tries again by itself
		var arrivals []store.Arrival
		fetches.EachRecord(func(m *kgo.Record) {
			if m.Value == nil {
				return // a tombstone
			}
			e, err := decode(m)
			if err != nil {
				log.Fatal(err)
			}
			r, err := record(e)
			if err != nil {
				log.Fatal(err)
			}
			arrivals = append(arrivals, store.Arrival{Record: r, Stream: int64(m.Partition), Position: m.Offset})
		})
		if err := db.Apply(ctx, arrivals); err != nil {
			log.Fatal(err)
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			log.Print(err) // what is not committed comes again
		}
		client.AllowRebalance()
	}
}

// decode reads an event as the Kafka protocol binding has it: all of it in the value, or its attributes in headers.
func decode(m *kgo.Record) (event.Event, error) {
	headers := map[string]string{}
	for _, h := range m.Headers {
		headers[h.Key] = string(h.Value)
	}
	e := event.New()
	versions := spec.WithPrefix("ce_")
	version := versions.Version(headers[versions.PrefixedSpecVersionName()])
	if version == nil {
		return e, json.Unmarshal(m.Value, &e)
	}
	e.Context, e.DataEncoded = version.NewContext(), m.Value
	for name, value := range headers {
		if err := version.SetAttribute(e.Context, name, value); err != nil {
			return e, err
		}
	}
	return e, e.Validate()
}

// record reads what kubeferry says in an event.
func record(e event.Event) (consume.Record, error) {
	attributes := map[string]any{
		"ce_specversion": e.SpecVersion(), "ce_id": e.ID(), "ce_source": e.Source(), "ce_subject": e.Subject(), "ce_time": e.Time().Format(time.RFC3339Nano),
	}
	for name, value := range e.Extensions() {
		attributes["ce_"+name] = value
	}
	records, err := consume.Decode(func(name string) string {
		if value, ok := attributes[name]; ok {
			return fmt.Sprint(value)
		}
		return ""
	}, e.Data())
	if err == nil && len(records) == 0 {
		err = fmt.Errorf("event %s has no data", e.ID())
	}
	if err != nil {
		return consume.Record{}, err
	}
	return records[0], nil
}
