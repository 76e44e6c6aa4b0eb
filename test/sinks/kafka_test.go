package sinks_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

// TestKafka shows what is particular to Kafka, against one broker of Apache Kafka: it takes longer to start than most of
// the tests do. Each has topics of its own. Most of their time is waiting, so they run side by side, but for the last,
// which kill the broker.
func TestKafka(t *testing.T) {
	t.Parallel()
	server := startKafka(t)
	t.Run("shared", func(t *testing.T) {
		run := func(name string, test func(t *testing.T, server *kafkaServer)) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, server.In(t))
			})
		}
		run("suite", testKafkaSuite)
		run("topic deleted", testKafkaTopicDeleted)
		run("interop", testKafkaInterop)
		run("check", testKafkaCheck)
		run("blame", testKafkaBlame)
		run("raw headers", testKafkaRawHeaders)
		run("bearer", testKafkaBearer)
		run("new topics", testKafkaNewTopics)
		run("oversize through a pipeline", testKafkaOversize)
		testKafkaRecords(run)
	})
	t.Run("restart", func(t *testing.T) { testKafkaRestart(t, server.In(t)) })
	t.Run("logins", func(t *testing.T) { testKafkaLogins(t, server.In(t)) })
}

// testKafkaRecords shows what becomes of records, topics and messages.
func testKafkaRecords(run func(name string, test func(t *testing.T, server *kafkaServer))) {
	run("an oversize record leaves its neighbours alone", func(t *testing.T, broker *kafkaServer) {
		broker.CreateTopic("oversize", 1)
		sink := openSink(t, kafkaConfig("oversize", broker.Addr()))
		var batch []sinks.Record
		for n := range 10 {
			for _, name := range []string{"a", "b", "c"} {
				batch = append(batch, sinktest.NewRecord(name, n+1))
			}
		}
		const oversize = 13 // b's fifth
		batch[oversize].Body = noise(1_500_000)
		errs := sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch))

		class := sinks.Classify(errs[oversize])
		if class == nil || !class.Permanent || class.Reason != sinks.ReasonTooLarge {
			t.Fatalf("oversize record: got %v, want permanent too_large", class)
		}
		for _, part := range []string{`"oversize"`, "1500000"} {
			if !strings.Contains(class.Error(), part) {
				t.Errorf("got %q, want it to say %s", class, part)
			}
		}
		var later []sinks.Record
		for i, err := range errs {
			held := i > oversize && batch[i].Key == batch[oversize].Key
			switch class := sinks.Classify(err); {
			case i == oversize:
			case held && (class == nil || class.Permanent):
				t.Errorf("record %d, behind the oversize one: got %v, want a transient error", i, err)
			case !held && err != nil:
				t.Errorf("neighbour %d: %v", i, err)
			}
			if held {
				later = append(later, batch[i])
			}
		}
		if err := sink.Deliver(t.Context(), later); err != nil { // the pipeline, after the dead letter
			t.Fatal(err)
		}
		records := readAll(t, broker, "oversize")
		if len(records) != len(batch)-1 {
			t.Errorf("got %d records stored, want %d", len(records), len(batch)-1)
		}
	})

	run("an oversize record that shrinks is stored", func(t *testing.T, broker *kafkaServer) {
		broker.CreateTopic("shrinks", 1)
		sink := openSink(t, kafkaConfig("shrinks", broker.Addr()))
		record := sinktest.NewRecord("a", 1)
		appendBlanks(2 << 20)(&record)
		if err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("b", 1), record, sinktest.NewRecord("c", 1)}); err != nil {
			t.Fatal(err)
		}
	})

	run("topics are created, and partitions are those of Java's client", func(t *testing.T, broker *kafkaServer) {
		config := kafkaConfig("made.{cluster}.{group}.{resource}", broker.Addr())
		config.CreateTopics = true
		sink := openSink(t, config)
		var batch []sinks.Record
		for n := range 50 {
			batch = append(batch, sinktest.NewRecord(fmt.Sprintf("object-%d", n), 1))
		}
		deliverAll(t, sink, batch)
		const topic = "made.test.core.configmaps"
		partitions := map[string]int32{}
		used := map[int32]bool{}
		for _, r := range readAll(t, broker, topic) {
			partitions[string(r.Key)] = r.Partition
			used[r.Partition] = true
		}
		if len(partitions) != 50 || len(used) != 4 {
			t.Fatalf("got %d keys in %d partitions, want 50 in 4", len(partitions), len(used))
		}
		client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for key, want := range partitions {
			r, err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte(key)}).First()
			if err != nil {
				t.Fatal(err)
			}
			if r.Partition != want {
				t.Errorf("key %s: got partition %d, and %d from franz-go", key, want, r.Partition)
			}
		}
	})

	run("no more topics are created than maxTopics", func(t *testing.T, broker *kafkaServer) {
		broker.CreateTopic("bounded.by-hand", 1)
		config := kafkaConfig("bounded.{namespace}", broker.Addr())
		config.CreateTopics, config.MaxTopics = true, 3
		var batch []sinks.Record
		for _, namespace := range []string{"by-hand", "one", "two", "three", "four"} {
			r := sinktest.NewRecord("object-in-"+namespace, 1)
			r.Fields.Namespace = namespace
			batch = append(batch, r)
		}
		refused := func(sink sinks.Sink) (namespaces []string) {
			deadline := within(t, 30*time.Second)
			for i, r := range batch {
				for {
					class := sinks.Classify(firstError(sink.Deliver(deadline, batch[i:i+1])))
					if class != nil && !strings.Contains(class.Error(), "maxTopics") && deadline.Err() == nil {
						time.Sleep(50 * time.Millisecond) // a new topic has no leader yet
						continue
					}
					if class != nil {
						namespaces = append(namespaces, r.Fields.Namespace)
						if class.Permanent || class.Reason != sinks.ReasonNotFound || !strings.Contains(class.Error(), `3 topics fit "bounded.{namespace}"`) {
							t.Errorf("%s: got %v", r.ID, class)
						}
					}
					break
				}
			}
			return namespaces
		}
		first, late := openSink(t, config), []string{"three", "four"}
		if got := refused(first); !slices.Equal(got, late) {
			t.Errorf("got no topics for %q, want none for %q", got, late)
		}
		// Another run counts what the first has made, and the first finds what is made by hand.
		if got := refused(openSink(t, config)); !slices.Equal(got, late) {
			t.Errorf("after a restart: got no topics for %q, want none for %q", got, late)
		}
		for _, namespace := range late {
			broker.CreateTopic("bounded."+namespace, 1)
		}
		deliverAll(t, first, batch)
	})

	run("an unknown topic passes", func(t *testing.T, broker *kafkaServer) {
		sink := openSink(t, kafkaConfig("unknown", broker.Addr()))
		err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", 1)})
		class := sinks.Classify(sinks.PerRecord(err, 1)[0])
		if class == nil || class.Permanent || class.Reason != sinks.ReasonNotFound {
			t.Fatalf("got %v, want a transient not_found", err)
		}
		broker.CreateTopic("unknown", 1)
		took := deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)})
		t.Logf("delivered %v after the topic was there", took)
	})

	run("tombstones and headers", func(t *testing.T, broker *kafkaServer) {
		broker.CreateTopic("tombstones", 1)
		config := kafkaConfig("tombstones", broker.Addr())
		config.Tombstones = true
		config.Compression = "zstd"
		sink := openSink(t, config)
		batch := []sinks.Record{sinktest.NewRecord("a", 1), sinktest.NewRecord("a", 2), sinktest.NewRecord("b", 1)}
		batch[1].Fields.Type = "DELETED"
		if err := sink.Deliver(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		got := readAll(t, broker, "tombstones")
		if len(got) != 4 {
			t.Fatalf("got %d messages, want 4", len(got))
		}
		for i, want := range []struct {
			record    int
			tombstone bool
		}{{0, false}, {1, false}, {1, true}, {2, false}} {
			r := batch[want.record]
			if string(got[i].Key) != r.PartitionKey() || (got[i].Value == nil) != want.tombstone || got[i].Headers["kubeferry-dedup-id"] != r.DedupID {
				t.Errorf("message %d: got key %q, value %q, headers %v", i, got[i].Key, got[i].Value, got[i].Headers)
			}
			if !want.tombstone && (got[i].Headers["content-type"] != r.ContentType || got[i].Headers["ce-subject"] != r.Headers["ce-subject"]) {
				t.Errorf("message %d: got headers %v", i, got[i].Headers)
			}
			if d := time.Since(got[i].Timestamp); d < -time.Minute || d > time.Minute {
				t.Errorf("message %d: got time %v", i, got[i].Timestamp)
			}
		}
	})

	run("clusters share a compacted topic", func(t *testing.T, broker *kafkaServer) {
		const topic = "shared-by-clusters"
		broker.CreateTopicWith(topic, 1, map[string]string{
			"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0",
		})
		config := kafkaConfig(topic, broker.Addr())
		config.Tombstones = true
		sink := openSink(t, config)
		of := func(cluster, name string, n int, change string) sinks.Record {
			r := sinktest.NewRecord(name, n)
			r.DedupID, r.Fields.Cluster, r.Fields.Type = cluster+"/"+r.DedupID, cluster, change
			return r
		}
		kept, replaced := of("eu", "web", 1, "ADDED"), of("us", "web", 1, "ADDED")
		deliverAll(t, sink, []sinks.Record{kept, replaced})
		deliverAll(t, sink, []sinks.Record{of("us", "web", 2, "DELETED")})
		// The broker compacts in its own time, and only what is behind the newest segment.
		for n, deadline := 1, time.Now().Add(2*time.Minute); ; n++ {
			deliverAll(t, sink, []sinks.Record{of("us", "other", n, "MODIFIED")})
			stored := readAll(t, broker, topic)
			if !broker.Real() { // the stand-in compacts nothing: what is left is the last record of each key
				last := map[string]kafkatest.Record{}
				for _, r := range stored {
					last[string(r.Key)] = r
				}
				stored = slices.Collect(maps.Values(last))
			}
			left := map[string]bool{}
			for _, r := range stored {
				left[r.Headers["kubeferry-dedup-id"]] = true
			}
			if !left[replaced.DedupID] {
				if !left[kept.DedupID] {
					t.Error("the object of a cluster is gone, since another cluster has deleted its own of that name")
				}
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("the broker has not compacted the topic")
			}
			time.Sleep(300 * time.Millisecond) // longer than a segment
		}
	})

	for _, compression := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		run("compression "+compression, func(t *testing.T, broker *kafkaServer) {
			topic := "compressed-" + compression
			broker.CreateTopic(topic, 1)
			config := kafkaConfig(topic, broker.Addr())
			config.Compression = compression
			if err := openSink(t, config).Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", 1), sinktest.NewRecord("a", 2)}); err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, broker, topic); len(got) != 2 || string(got[1].Value) != string(sinktest.NewRecord("a", 2).Body) {
				t.Errorf("got %d records", len(got))
			} else if got[0].Compression != compression {
				t.Errorf("got a batch with compression %s", got[0].Compression)
			}
		})
	}

	for _, key := range []string{"uid", "namespace", "none"} {
		run("key "+key, func(t *testing.T, broker *kafkaServer) {
			topic := "keyed-by-" + key
			broker.CreateTopic(topic, 4)
			config := kafkaConfig(topic, broker.Addr())
			config.Key, config.RequiredAcks = key, "1"
			record := sinktest.NewRecord("a", 1)
			if err := openSink(t, config).Deliver(t.Context(), []sinks.Record{record, sinktest.NewRecord("b", 1)}); err != nil {
				t.Fatal(err)
			}
			got := readAll(t, broker, topic)
			want := map[string]string{"uid": record.Fields.UID, "namespace": record.Fields.Namespace}[key]
			if !slices.ContainsFunc(got, func(r kafkatest.Record) bool {
				return string(r.Key) == want && (r.Key == nil) == (key == "none")
			}) {
				t.Errorf("got %v, want key %q", got, want)
			}
			if key == "none" && got[0].Partition == got[1].Partition {
				t.Errorf("both records in partition %d, want them in turn", got[0].Partition)
			}
		})
	}

	// A topic that takes 4 KiB at once: batches are cut down until they fit.
	run("a topic for small batches", func(t *testing.T, broker *kafkaServer) {
		broker.CreateTopicWith("small", 2, map[string]string{"max.message.bytes": "4096"})
		config := kafkaConfig("small", broker.Addr())
		config.Compression = "none"
		sink := openSink(t, config)
		var batch []sinks.Record
		for n := range 40 {
			for k := range 5 {
				batch = append(batch, sinktest.NewRecord(fmt.Sprintf("object-%d", k), n+1))
			}
		}
		const oversize = 77
		appendBlanks(8 << 10)(&batch[oversize])
		for i, err := range sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch)) {
			behind := i >= oversize && batch[i].Key == batch[oversize].Key
			if (err != nil) != behind {
				t.Errorf("record %d: got %v", i, err)
			}
			if class := sinks.Classify(err); class != nil && class.Permanent != (i == oversize) {
				t.Errorf("record %d: got permanent %t: %v", i, class.Permanent, err)
			}
		}
		if got := len(readAll(t, broker, "small")); got != 200-25 {
			t.Errorf("got %d records stored, want %d", got, 200-25)
		}
	})
}

// TestKafkaClose closes a sink whose peer hangs.
func TestKafkaClose(t *testing.T) {
	link := newProxy(t)
	newFake(t, link, kfake.SeedTopics(1, "close"))
	config := kafkaConfig("close", link.Addr())
	sink := openSink(t, config)
	deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)})
	link.Stall()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := sink.Deliver(ctx, []sinks.Record{sinktest.NewRecord("a", 2)}); err == nil {
		t.Fatal("got no error from a peer that hangs")
	}
	start := time.Now()
	if err := sink.Close(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("Close took %v", took)
	}
}

func BenchmarkKafka(b *testing.B) {
	broker := kafkatest.Start(b)
	broker.CreateTopic("bench", 6)
	config := kafkaConfig("bench", broker.Addr())
	benchmark(b, openSink(b, config), config)
}

// deliverAll repeats what was not acknowledged, as a pipeline would, and returns how long it took.
func deliverAll(t *testing.T, sink sinks.Sink, batch []sinks.Record) time.Duration {
	t.Helper()
	start := time.Now()
	ctx := within(t, 30*time.Second)
	for {
		err := sink.Deliver(ctx, batch)
		if err == nil {
			return time.Since(start).Round(time.Millisecond)
		}
		if ctx.Err() != nil {
			t.Fatal(firstError(err))
		}
		var left []sinks.Record
		for i, err := range sinks.PerRecord(err, len(batch)) {
			if err != nil {
				left = append(left, batch[i])
			}
		}
		batch = left
		time.Sleep(50 * time.Millisecond)
	}
}

// deliverUntil repeats a call until the first record's error is as wanted.
func deliverUntil(t *testing.T, sink sinks.Sink, batch []sinks.Record, want func(*sinks.Error) bool) {
	t.Helper()
	ctx := within(t, 30*time.Second)
	var before error
	for {
		class := sinks.Classify(firstError(sink.Deliver(ctx, batch)))
		switch {
		case class == nil:
			t.Fatal("acknowledged, want an error")
		case class.Permanent:
			t.Fatalf("got permanent error %v", class)
		case want(class):
			return
		case ctx.Err() != nil:
			t.Fatalf("got %s: %v, before that %v", class.Reason, class, before)
		}
		before = class
		time.Sleep(50 * time.Millisecond)
	}
}

func readAll(t *testing.T, from interface {
	ReadAll(ctx context.Context, topics ...string) ([]kafkatest.Record, error)
}, topic string,
) []kafkatest.Record {
	t.Helper()
	records, err := from.ReadAll(within(t, 30*time.Second), topic)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// nameOf returns the object's name in a key of sinktest.
func nameOf(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// noise returns a JSON string of n bytes that does not compress below half.
func noise(n int) []byte {
	random := make([]byte, n/2-1)
	_, _ = rand.Read(random)
	return []byte(`"` + hex.EncodeToString(random) + `"`)
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	// As a kubelet does: a new file takes the place of the old one.
	if err := errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}
