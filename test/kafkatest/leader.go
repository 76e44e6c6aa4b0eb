package kafkatest

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
)

// MoveLeaders has every partition of a topic led by the broker after the one that leads it, and returns when they are.
func (b *Broker) MoveLeaders(topic string) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), startTimeout)
	defer cancel()
	client := b.client()
	defer client.Close()
	admin := kadm.NewClient(client)
	if err := moveLeaders(ctx, admin, topic); err != nil {
		b.tb.Fatalf("move the leaders of topic %q: %v", topic, err)
	}
}

func moveLeaders(ctx context.Context, admin *kadm.Client, topic string) error {
	topics, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	// The first replica of the list is the preferred leader: turn each list by one.
	want := map[int32]int32{}
	var partitions kadm.TopicsSet
	var order kadm.AlterPartitionAssignmentsReq
	topics.EachPartition(func(p kadm.PartitionDetail) {
		at := 0
		for i, replica := range p.Replicas {
			if replica == p.Leader {
				at = i
			}
		}
		turned := append(append([]int32{}, p.Replicas[(at+1)%len(p.Replicas):]...), p.Replicas[:(at+1)%len(p.Replicas)]...)
		order.Assign(topic, p.Partition, turned)
		want[p.Partition] = turned[0]
		partitions.Add(topic, p.Partition)
	})
	altered, err := admin.AlterPartitionAssignments(ctx, order)
	if err == nil {
		err = altered.Error()
	}
	if err != nil {
		return err
	}
	return poll(ctx, func() error {
		if _, err := admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, partitions); err != nil {
			return err
		}
		topics, err := admin.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		for id, p := range topics[topic].Partitions {
			if p.Leader != want[id] {
				return fmt.Errorf("partition %d is led by %d, not by %d; in sync are %v", id, p.Leader, want[id], p.ISR)
			}
		}
		return nil
	})
}

// DeleteTopic deletes a topic and returns when that one is gone. A sink may have made it again by then.
func (b *Broker) DeleteTopic(name string) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), startTimeout)
	defer cancel()
	client := b.client()
	defer client.Close()
	admin := kadm.NewClient(client)
	before, err := admin.ListTopics(ctx, name)
	if err == nil {
		_, err = admin.DeleteTopic(ctx, name)
	}
	if err != nil {
		b.tb.Fatalf("delete topic %q: %v", name, err)
	}
	err = poll(ctx, func() error {
		topics, err := admin.ListTopics(ctx, name)
		if err != nil {
			return err
		}
		if topics[name].Err == nil && topics[name].ID == before[name].ID { // a sink may have made it again
			return fmt.Errorf("it is still there")
		}
		return nil
	})
	if err != nil {
		b.tb.Fatalf("delete topic %q: %v", name, err)
	}
}
