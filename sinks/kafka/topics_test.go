package kafka

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// laggingBroker stands in for brokers whose metadata has no topic that was created less than lag ago.
type laggingBroker struct {
	lag     time.Duration
	refuses kafka.Error // all creations, unless 0
	created map[string]time.Time
}

// RoundTrip implements [kafka.RoundTripper].
func (b *laggingBroker) RoundTrip(_ context.Context, _ net.Addr, request kafka.Request) (kafka.Response, error) {
	switch r := request.(type) {
	case *metadata.Request:
		response := &metadata.Response{Brokers: []metadata.ResponseBroker{{NodeID: 1}}}
		names := r.TopicNames
		if len(names) == 0 {
			names = slices.Collect(maps.Keys(b.created))
		}
		for _, name := range names {
			created, ok := b.created[name]
			if ok && time.Since(created) >= b.lag {
				response.Topics = append(response.Topics, metadata.ResponseTopic{Name: name, Partitions: []metadata.ResponsePartition{{LeaderID: 1}}})
			} else if len(r.TopicNames) > 0 {
				response.Topics = append(response.Topics, metadata.ResponseTopic{Name: name, ErrorCode: int16(kafka.UnknownTopicOrPartition)})
			}
		}
		return response, nil
	case *createtopics.Request:
		response := &createtopics.Response{}
		for _, topic := range r.Topics {
			code := b.refuses
			if _, ok := b.created[topic.Name]; ok && code == 0 {
				code = kafka.TopicAlreadyExists
			} else if code == 0 {
				b.created[topic.Name] = time.Now()
			}
			response.Topics = append(response.Topics, createtopics.ResponseTopic{Name: topic.Name, ErrorCode: int16(code)})
		}
		return response, nil
	default:
		return nil, fmt.Errorf("unexpected request %T", request)
	}
}

// The brokers' metadata lags behind what they created, for longer than the sink keeps its list of topics: maxTopics holds nevertheless.
func TestMaxTopicsWhileMetadataLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &laggingBroker{lag: 30 * time.Second, created: map[string]time.Time{}}
		config := testConfig()
		config.Topic, config.CreateTopics, config.MaxTopics = "made.{name}", true, 2
		sink := newTestSink(t, config, &broker{})
		sink.client.Transport = b
		wantsCreated := func(when string, want ...string) {
			t.Helper()
			if got := slices.Sorted(maps.Keys(b.created)); !slices.Equal(got, want) {
				t.Fatalf("%s: the topics %q are created, want %q", when, got, want)
			}
		}
		lookup := func(topic string) {
			t.Helper()
			if _, err := sink.lookup(t.Context(), []string{topic}); err != nil {
				t.Fatal(err)
			}
		}

		b.refuses = kafka.PolicyViolation
		lookup("made.x")
		b.refuses = 0
		lookup("made.a")
		lookup("made.b")
		wantsCreated("a refused topic takes no room", "made.a", "made.b")

		b.refuses = kafka.NotController
		lookup("made.a") // again, since it does not show yet
		b.refuses = 0
		lookup("made.c")
		wantsCreated("a topic that exists was requested again, in vain", "made.a", "made.b")

		for range 8 { // until after the lag
			time.Sleep(refreshMissingTopic)
			lookup("made.c")
		}
		wantsCreated("while the metadata lags", "made.a", "made.b")

		delete(b.created, "made.a")
		time.Sleep(newTopic)
		lookup("made.c")
		wantsCreated("a topic was deleted", "made.b", "made.c")
	})
}

func TestFitting(t *testing.T) {
	for _, test := range []struct {
		template, topic string
		want            bool
	}{
		{"k8s.{group}.{resource}", "k8s.apps.deployments", true},
		{"k8s.{group}.{resource}", "k8s.rbac.authorization.k8s.io.roles", true},
		{"k8s.{group}.{resource}", "k8s.apps", false},
		{"k8s.{group}.{resource}", "k8sxapps.deployments", false},
		{"k8s.{group}.{resource}", "my-k8s.apps.deployments", false},
		{"{namespace}-log", "shop-log", true},
		{"{namespace}-log", "shop-logs", false},
		{"{namespace}-log", "-log", false},
		{"audit", "audit", true},
		{"audit", "audit.2", false},
	} {
		if got := fitting(test.template).MatchString(test.topic); got != test.want {
			t.Errorf("%s of %s: got %t, want %t", test.topic, test.template, got, test.want)
		}
	}
}
