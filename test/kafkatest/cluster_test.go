package kafkatest_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubeferry/kubeferry/test/kafkatest"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	b := kafkatest.StartWith(t, kafkatest.Options{Brokers: 2})
	b.CreateTopic("changes", 4)
	produce(t, b, 0, 20)
	b.MoveLeaders("changes")
	produce(t, b, 20, 10)
	b.Kill(1)
	produce(t, b, 30, 10)
	b.Revive(1)
	got, err := b.ReadAll(t.Context(), "changes")
	if err != nil {
		t.Fatal(err)
	}
	checkRecords(t, got, 40)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	printed, err := b.ReadConsole(ctx, "changes", 40)
	if err != nil {
		t.Fatal(err)
	}
	checkRecords(t, printed, 40)

	b.DeleteTopic("changes")
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.UnknownTopicRetries(0), kgo.RetryTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: "changes"}).FirstErr(); err == nil {
		t.Error("a deleted topic takes records")
	}
}
