package kafkatest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

func TestMain(m *testing.M) {
	asyncapi.Anything = true
	assets.Must(kafkatest.Prepare)
	goleak.VerifyTestMain(m)
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("changes", 3)
	produce(t, b, 0, 50)

	got, err := b.ReadAll(t.Context(), "changes")
	if err != nil {
		t.Fatal(err)
	}
	checkRecords(t, got, 50)

	t.Run("consume waits for what comes later", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		produced := false
		got, err := b.Consume(ctx, func(records []kafkatest.Record) bool {
			if len(records) == 50 && !produced {
				produced = true
				produce(t, b, 50, 10)
			}
			return len(records) == 60
		}, "changes")
		if err != nil {
			t.Fatal(err)
		}
		checkRecords(t, got, 60)
	})

	t.Run("a stopped broker refuses", func(t *testing.T) {
		b.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := b.Consume(ctx, func([]kafkatest.Record) bool { return false }, "changes"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline to pass", err)
		}
	})

	t.Run("data survive a restart", func(t *testing.T) {
		b.Restart()
		got, err := b.ReadAll(t.Context(), "changes")
		if err != nil {
			t.Fatal(err)
		}
		checkRecords(t, got, 60)
	})
}

func produce(t *testing.T, b *kafkatest.Broker, from, n int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.DefaultProduceTopic("changes"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := from; i < from+n; i++ {
		r := &kgo.Record{
			Key:     fmt.Appendf(nil, "key-%d", i%7),
			Value:   fmt.Appendf(nil, "value-%d", i),
			Headers: []kgo.RecordHeader{{Key: "ce_id", Value: fmt.Appendf(nil, "id-%d", i)}},
		}
		if i%10 == 3 {
			r.Value = nil
		}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func checkRecords(t *testing.T, got []kafkatest.Record, want int) {
	t.Helper()
	ids := map[string]bool{}
	next := map[int32]int64{}
	tombstones := 0
	for _, r := range got {
		ids[r.Headers["ce_id"]] = true
		if r.Offset != next[r.Partition] {
			t.Errorf("partition %d: got offset %d, want %d", r.Partition, r.Offset, next[r.Partition])
		}
		next[r.Partition] = r.Offset + 1
		if r.Value == nil {
			tombstones++
		}
	}
	if len(got) != want || len(ids) != want {
		t.Errorf("got %d records with %d ids, want %d", len(got), len(ids), want)
	}
	if tombstones != want/10 {
		t.Errorf("got %d tombstones, want %d", tombstones, want/10)
	}
}
