package kafka

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

var _ kafka.RoundTripper = (*transport)(nil)

// transport sends requests through a [kafka.Transport] that reads the metadata of the topics in use, which are those of earlier requests.
// A kafka.Transport reads the metadata of a fixed list of topics, or of all that the cluster has, every five seconds on average. So
// another one takes its place when a request names a topic that it does not know. Calls under way keep the old one until they end.
type transport struct {
	open func(topics []string) *kafka.Transport

	mu      sync.Mutex           // guards what follows
	topics  map[string]time.Time // when each was asked for last
	current *kafka.Transport
	renewed time.Time
}

// disusedAfter is how long after it was asked for a topic is forgotten, with the next new one: tenants may name topics.
const disusedAfter = 10 * time.Minute

func newTransports(open func(topics []string) *kafka.Transport) *transport {
	return &transport{open: open, topics: map[string]time.Time{}, current: open([]string{})}
}

// RoundTrip implements [kafka.RoundTripper].
func (t *transport) RoundTrip(ctx context.Context, addr net.Addr, request kafka.Request) (kafka.Response, error) {
	asked, ok := request.(*metadata.Request)
	switch {
	case !ok:
		return t.with(nil).RoundTrip(ctx, addr, request)
	case asked.TopicNames == nil: // all of them, which is seldom asked for
		all := t.open(nil)
		defer all.CloseIdleConnections()
		return all.RoundTrip(ctx, addr, request)
	default:
		return t.with(asked.TopicNames).RoundTrip(ctx, addr, request)
	}
}

// with returns the transport, which knows topics.
func (t *transport) with(topics []string) *kafka.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, now := len(t.topics), time.Now()
	for _, topic := range topics {
		t.topics[topic] = now
	}
	if len(t.topics) > known {
		maps.DeleteFunc(t.topics, func(_ string, asked time.Time) bool { return now.Sub(asked) > disusedAfter })
		t.current.CloseIdleConnections()
		t.current = t.open(slices.Sorted(maps.Keys(t.topics)))
	}
	return t.current
}

// renew makes the next request begin with new connections and with the metadata, unless it did so within a time.
func (t *transport) renew(atMost time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.renewed) >= atMost {
		t.renewed = now
		t.current.CloseIdleConnections()
	}
}
