package kafka

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	// maxInFlight bounds the requests under way. kafka-go sends one at a time over a connection, so it bounds the
	// connections too.
	maxInFlight = 16
	// How often the metadata is read anew: after an error of a broker, and while a topic is missing or forbidden.
	refreshAfterError   = time.Second
	refreshMissingTopic = 5 * time.Second
)

var _ sinks.Sink = (*Sink)(nil)

// Sink delivers to Kafka.
type Sink struct {
	config  *Config
	topic   sinks.Template
	brokers string
	log     *slog.Logger

	client    *kafka.Client
	transport *transport
	end       context.CancelFunc   // closes every connection
	inFlight  chan struct{}        // semaphore
	creating  chan struct{}        // held while topics are counted and created; guards the next two
	counted   map[string]time.Time // the topics that maxTopics counts, and when the sink requested their creation, if it did
	listed    time.Time            // when the brokers' topics were read into counted
	turn      atomic.Uint32        // chooses the partitions with key: none
	hung      hungBrokers
}

// Open implements [sinks.Config]. It connects to nothing.
func (c *Config) Open(ctx context.Context, env sinks.Env) (sinks.Sink, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	login := loginOf(life, c.SASL)
	transport := newTransports(func(topics []string) *kafka.Transport {
		return openTransport(life, c, env.UserAgent, login, topics)
	})
	return &Sink{
		config:  c,
		topic:   sinks.NewTemplate(c.Topic),
		brokers: strings.Join(c.Brokers, ","),
		log:     env.Logger,
		client: &kafka.Client{
			Addr: kafka.TCP(c.Brokers...),
			// It goes to the brokers too, which wait half of it for replicas; without it, 500 ms.
			Timeout:   c.Timeout,
			Transport: transport,
		},
		transport: transport,
		end:       end,
		inFlight:  make(chan struct{}, maxInFlight),
		creating:  make(chan struct{}, 1),
		hung:      hungBrokers{timeout: c.Timeout, until: map[kafka.Broker]time.Time{}},
	}, nil
}

// Deliver implements [sinks.Sink].
func (s *Sink) Deliver(ctx context.Context, batch []sinks.Record) error {
	if len(batch) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()

	errs := make([]error, len(batch))
	var wg sync.WaitGroup
	groups := s.groups(ctx, batch, errs)
	for _, g := range groups {
		wg.Go(func() { g.Send(ctx, g.records) })
	}
	wg.Wait()
	for _, g := range groups {
		for _, i := range g.records {
			errs[i] = cmp.Or(errs[i], g.Errs[i])
		}
	}
	return sinks.Result(errs)
}

// Close implements [sinks.Sink]. It closes every connection in any state, so nothing in it can block.
func (s *Sink) Close(context.Context) error {
	s.transport.renew(0)
	s.end()
	return nil
}

// refreshFor makes the next call read the metadata again if that may help against err. After a time-out it may not: perhaps it would be the
// broker that does not answer which is asked, and kafka-go reads the metadata again soon, beside the calls.
func (s *Sink) refreshFor(err error) {
	switch reasonOf(err) {
	case sinks.ReasonUnreachable, sinks.ReasonUnavailable:
		s.transport.renew(refreshAfterError)
	case sinks.ReasonNotFound, sinks.ReasonUnauthorized:
		s.transport.renew(refreshMissingTopic)
	}
}
