package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/kubeferry/kubeferry/sinks"
)

// broker stands in for the network: it answers requests as a broker would, and refuses what refuse returns a code for.
type broker struct {
	partitions int32
	refuse     func(ids []string) kafka.Error // 0: stored

	mu       sync.Mutex // guards what follows
	stored   map[int32][]string
	requests [][]string
}

// RoundTrip implements [kafka.RoundTripper].
func (b *broker) RoundTrip(_ context.Context, _ net.Addr, request kafka.Request) (kafka.Response, error) {
	switch r := request.(type) {
	case *metadata.Request:
		response := &metadata.Response{Brokers: []metadata.ResponseBroker{{NodeID: 1}}}
		for _, name := range r.TopicNames {
			topic := metadata.ResponseTopic{Name: name}
			for i := range b.partitions {
				topic.Partitions = append(topic.Partitions, metadata.ResponsePartition{PartitionIndex: b.partitions - 1 - i, LeaderID: 1})
			}
			response.Topics = append(response.Topics, topic)
		}
		return response, nil
	case *produce.Request:
		partition := &r.Topics[0].Partitions[0]
		ids, err := readIDs(partition.RecordSet.Records)
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.requests = append(b.requests, ids)
		code := b.refuse(ids)
		if code == 0 {
			b.stored[partition.Partition] = append(b.stored[partition.Partition], ids...)
		}
		return &produce.Response{Topics: []produce.ResponseTopic{{Partitions: []produce.ResponsePartition{{ErrorCode: int16(code)}}}}}, nil
	default:
		return nil, fmt.Errorf("unexpected request %T", request)
	}
}

func readIDs(records protocol.RecordReader) ([]string, error) {
	var ids []string
	for {
		record, err := records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return ids, nil
		}
		if err != nil {
			return nil, err
		}
		for _, h := range record.Headers {
			if h.Key == headerID {
				ids = append(ids, string(h.Value))
			}
		}
	}
}

func newTestSink(t *testing.T, config *Config, b *broker) *Sink {
	t.Helper()
	opened, err := config.Open(t.Context(), sinks.Env{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	sink := opened.(*Sink)
	sink.client.Transport = b
	b.stored = map[int32][]string{}
	t.Cleanup(func() { _ = sink.Close(context.Background()) })
	return sink
}

func testConfig() *Config {
	config := NewConfig()
	config.Brokers = []string{"nowhere:9092"}
	return config
}

func testRecord(key string, n int) sinks.Record {
	return sinks.Record{
		Key: "/" + key, DedupID: fmt.Sprintf("%s/%d", key, n), Body: []byte(strings.Repeat("x", 100)),
		Fields: sinks.Fields{Resource: "pods", Type: "MODIFIED"},
	}
}

// TestDeliverContract delivers random batches to a broker that refuses at random, and checks what the contract
// promises about the result.
func TestDeliverContract(t *testing.T) {
	codes := []kafka.Error{kafka.MessageSizeTooLarge, kafka.InvalidRecord, kafka.NotEnoughReplicas, kafka.NotLeaderForPartition}
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 0))
		bad := map[string]kafka.Error{}
		var batch []sinks.Record
		next := map[string]int{}
		for range 1 + random.IntN(60) {
			key := string(rune('a' + random.IntN(6)))
			next[key]++
			r := testRecord(key, next[key])
			if key == "a" {
				r.Fields.Type = []string{"GAP", "SNAPSHOT"}[random.IntN(2)]
			}
			if random.IntN(12) == 0 {
				bad[r.DedupID] = codes[random.IntN(len(codes))]
			}
			batch = append(batch, r)
		}
		b := &broker{partitions: 1 + random.Int32N(4), refuse: func(ids []string) kafka.Error {
			for _, id := range ids {
				if code := bad[id]; code != 0 {
					return code
				}
			}
			return 0
		}}
		config := testConfig()
		config.Batch.MaxBytes = sinks.Bytes(1024 + random.IntN(4096))
		errs := sinks.PerRecord(newTestSink(t, config, b).Deliver(t.Context(), batch), len(batch))

		stored, all := 0, 0
		for _, ids := range b.stored {
			stored += len(ids)
		}
		failed := map[string]bool{}
		for i, r := range batch {
			class := sinks.Classify(errs[i])
			in, want := 0, 1 // of how many partitions: one that failed may be in some
			if notice(&r) {
				want = int(b.partitions)
			}
			for _, ids := range b.stored {
				if slices.Contains(ids, r.DedupID) {
					in++
				}
			}
			all += want
			permanent := bad[r.DedupID] == kafka.MessageSizeTooLarge || bad[r.DedupID] == kafka.InvalidRecord
			switch {
			case (class == nil) != (in == want):
				t.Errorf("seed %d: %s: got %v, stored in %d partitions, want %d", seed, r.DedupID, class, in, want)
			case class == nil && failed[r.Key]:
				t.Errorf("seed %d: %s stored after an earlier one of its key failed", seed, r.DedupID)
			case class != nil && class.Permanent && !permanent:
				t.Errorf("seed %d: %s: got permanent %v", seed, r.DedupID, class)
			}
			failed[r.Key] = failed[r.Key] || class != nil
		}
		if len(bad) == 0 && stored != all {
			t.Errorf("seed %d: got %d stored, want %d", seed, stored, all)
		}
		if t.Failed() {
			return
		}
	}
}

func TestNeighboursOfTheRefused(t *testing.T) {
	b := &broker{partitions: 1, refuse: func(ids []string) kafka.Error {
		if slices.Contains(ids, "b/2") {
			return kafka.MessageSizeTooLarge
		}
		return 0
	}}
	var batch []sinks.Record
	for n := range 4 {
		for _, key := range []string{"a", "b", "c", "d"} {
			batch = append(batch, testRecord(key, n+1))
		}
	}
	errs := sinks.PerRecord(newTestSink(t, testConfig(), b).Deliver(t.Context(), batch), len(batch))
	for i, r := range batch {
		class := sinks.Classify(errs[i])
		switch r.DedupID {
		case "b/2":
			if class == nil || !class.Permanent || class.Reason != sinks.ReasonTooLarge {
				t.Errorf("%s: got %v", r.DedupID, class)
			}
		case "b/3", "b/4":
			if class == nil || class.Permanent || !strings.Contains(class.Error(), "held back") {
				t.Errorf("%s: got %v", r.DedupID, class)
			}
		default:
			if class != nil {
				t.Errorf("%s: got %v", r.DedupID, class)
			}
		}
	}
	if len(b.requests) > 10 {
		t.Errorf("took %d requests: %v", len(b.requests), b.requests)
	}
}

func TestOversizeTravelsAlone(t *testing.T) {
	b := &broker{partitions: 1, refuse: func([]string) kafka.Error { return 0 }}
	batch := []sinks.Record{testRecord("a", 1), testRecord("b", 1), testRecord("c", 1), testRecord("d", 1)}
	batch[1].Body = make([]byte, maxRecord)
	config := testConfig()
	config.Batch.MaxBytes = 64 << 20
	if err := newTestSink(t, config, b).Deliver(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(b.requests), "[[a/1] [b/1] [c/1 d/1]]"; got != want {
		t.Errorf("got requests %s, want %s", got, want)
	}
}

func TestTombstoneStaysWithItsRecord(t *testing.T) {
	b := &broker{partitions: 1, refuse: func([]string) kafka.Error { return 0 }}
	config := testConfig()
	config.Tombstones = true
	config.Batch.MaxBytes = 1024
	var batch []sinks.Record
	for n := range 20 {
		r := testRecord("a", n+1)
		r.Fields.Type = "DELETED"
		batch = append(batch, r)
	}
	if err := newTestSink(t, config, b).Deliver(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if len(b.requests) < 2 {
		t.Fatal("all in one request, want several")
	}
	for _, ids := range b.requests {
		for i := 0; i < len(ids); i += 2 {
			if i+1 == len(ids) || ids[i] != ids[i+1] {
				t.Fatalf("got request %v, want pairs", ids)
			}
		}
	}
}

func TestOverAnyRequest(t *testing.T) {
	b := &broker{partitions: 1, refuse: func([]string) kafka.Error { return 0 }}
	r := testRecord("a", 1)
	r.Body = make([]byte, maxRequest+1)
	err := newTestSink(t, testConfig(), b).Deliver(t.Context(), []sinks.Record{r})
	if class := sinks.Classify(sinks.PerRecord(err, 1)[0]); class == nil || !class.Permanent || class.Reason != sinks.ReasonTooLarge {
		t.Errorf("got %v, want permanent too_large", err)
	}
	if len(b.requests) != 0 {
		t.Errorf("got %d requests, want none", len(b.requests))
	}
}

// TestBounds checks that requests are sent side by side, and no more than the bound.
func TestBounds(t *testing.T) {
	var mu sync.Mutex
	now, most := 0, 0
	b := &broker{partitions: 64, refuse: func([]string) kafka.Error { return 0 }}
	sink := newTestSink(t, testConfig(), b)
	sink.client.Transport = roundTripper(func(ctx context.Context, addr net.Addr, request kafka.Request) (kafka.Response, error) {
		if _, ok := request.(*produce.Request); ok {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(5 * time.Millisecond) // what the network takes
			defer func() { mu.Lock(); now--; mu.Unlock() }()
		}
		return b.RoundTrip(ctx, addr, request)
	})
	var batch []sinks.Record
	for n := range 500 {
		batch = append(batch, testRecord(fmt.Sprint(n), 1))
	}
	if err := sink.Deliver(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if most < 2 || most > maxInFlight {
		t.Errorf("got %d requests at once, want 2 to %d", most, maxInFlight)
	}
}

type roundTripper func(context.Context, net.Addr, kafka.Request) (kafka.Response, error)

func (f roundTripper) RoundTrip(ctx context.Context, addr net.Addr, request kafka.Request) (kafka.Response, error) {
	return f(ctx, addr, request)
}
