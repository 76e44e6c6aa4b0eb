// Command kafka keeps a table of what exists and a log of what happened, from topics. Several of it, with one -group, share the partitions
// and the database.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubeferry/kubeferry/consume"
	"github.com/kubeferry/kubeferry/examples/go/store"
)

func main() {
	brokers := flag.String("brokers", "localhost:9092", "host:port, comma-separated")
	topics := flag.String("topic", "k8s", "topics, comma-separated")
	group := flag.String("group", "table", "consumer group")
	file := flag.String("db", "table.db", "SQLite database")
	flag.Parse()
	ctx := context.Background()
	db, err := store.Open(ctx, *file)
	if err != nil {
		log.Fatal(err)
	}
	// Offsets are committed once what precedes them is stored, and partitions go to another member between two polls only.
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(*brokers, ",")...), kgo.ConsumerGroup(*group), kgo.ConsumeTopics(strings.Split(*topics, ",")...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(10*time.Second)) // after which another member gets the partitions of one that was killed
	if err != nil {
		log.Fatal(err)
	}
	for {
		fetches := client.PollRecords(ctx, 1000)
		fetches.EachError(func(_ string, _ int32, err error) {
			if errors.Is(err, kerr.UnknownTopicID) { // for ever: the client does not take another topic for this one
				log.Fatal("a topic was deleted, or made again: start anew")
			}
			log.Print(err) // it tries again by itself
		})
		var records []consume.Record
		fetches.EachRecord(func(m *kgo.Record) {
			header := func(name string) string {
				at := slices.IndexFunc(m.Headers, func(h kgo.RecordHeader) bool { return h.Key == name })
				if at < 0 {
					return ""
				}
				return string(m.Headers[at].Value)
			}
			read, err := consume.Decode(header, m.Value) // nothing of a tombstone
			if err != nil {                              // an object may be nested too deeply to be read
				log.Printf("%s, partition %d, offset %d: %v", m.Topic, m.Partition, m.Offset, err)
			}
			records = append(records, read...)
		})
		if err := db.Apply(ctx, records); err != nil {
			log.Fatal(err)
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			log.Print(err) // what is not committed comes again
		}
		client.AllowRebalance()
	}
}
