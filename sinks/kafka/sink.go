package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	// maxInFlight bounds the requests under way. kafka-go sends one at a time over a connection, so it bounds the
	// connections too.
	maxInFlight = 16
	// How often the metadata is asked for anew: after an error of a broker, and while a topic is missing or forbidden.
	refreshAfterError   = time.Second
	refreshMissingTopic = 5 * time.Second
)

var _ sinks.Sink = (*Sink)(nil)

// Sink delivers to Kafka.
type Sink struct {
	encoding
	topic        sinks.Template
	fixedTopic   string // the topic, if it has no placeholder
	maxBytes     int
	acks         kafka.RequiredAcks
	compression  kafka.Compression
	timeout      time.Duration
	createTopics bool
	brokers      string
	log          *slog.Logger
	topics       topicLog

	client    *kafka.Client
	transport *kafka.Transport
	end       context.CancelFunc // closes every connection
	inFlight  chan struct{}      // semaphore
	turn      atomic.Uint32      // of key: none

	mu        sync.Mutex // guards what follows
	refreshed time.Time  // when the pool of connections was given up
}

func open(config *Config, env sinks.Env) (*Sink, error) {
	topic, err := sinks.ParseTemplate(config.Topic)
	if err != nil {
		return nil, fmt.Errorf("topic: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	transport := newTransport(ctx, config, fixed(topic), env.UserAgent)
	return &Sink{
		encoding:     encoding{key: config.Key, tombstones: config.Tombstones},
		topic:        topic,
		fixedTopic:   fixed(topic),
		maxBytes:     int(config.Batch.MaxBytes),
		acks:         requiredAcks[config.RequiredAcks],
		compression:  compressions[config.Compression],
		timeout:      config.Timeout,
		createTopics: config.CreateTopics,
		brokers:      strings.Join(config.Brokers, ","),
		log:          env.Logger,
		topics:       topicLog{log: env.Logger, failing: map[string]struct{}{}},
		client: &kafka.Client{
			Addr: kafka.TCP(config.Brokers...),
			// Also what brokers are told: they wait for half of it for replicas; without it, 500 ms.
			Timeout:   config.Timeout,
			Transport: transport,
		},
		transport: transport,
		end:       end,
		inFlight:  make(chan struct{}, maxInFlight),
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
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()

	errs := make([]error, len(batch))
	var wg sync.WaitGroup
	for _, g := range s.groups(ctx, batch, errs) {
		wg.Go(func() { g.Send(ctx, g.records) })
	}
	wg.Wait()
	return sinks.Result(errs)
}

// Close implements [sinks.Sink]. It closes every connection, whatever its state, so nothing in it can block.
func (s *Sink) Close(context.Context) error {
	s.transport.CloseIdleConnections()
	s.end()
	return nil
}

// refreshFor has the metadata read anew by the next call, if err is of a kind that this may mend.
func (s *Sink) refreshFor(err error) {
	switch {
	case staleMetadata(err):
		s.refresh(refreshAfterError)
	case reasonOf(err) == sinks.ReasonNotFound, reasonOf(err) == sinks.ReasonUnauthorized:
		s.refresh(refreshMissingTopic)
	}
}

func (s *Sink) refresh(atMost time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.refreshed) >= atMost {
		s.refreshed = now
		s.transport.CloseIdleConnections()
	}
}

// group are the records of a Deliver call that go to one partition. One goroutine owns it.
type group struct {
	sinks.Split
	sink      *Sink
	topic     string
	partition int
	records   []int // indices into Batch, in order
}

// fit returns how many of the records go into the next request: as many as maxBytes allows, but at least one.
func (g *group) fit(records []int) int {
	total := batchOverhead
	for n, i := range records {
		r := &g.Batch[i]
		size := g.sink.sizeOf(r).wire() + g.sink.tombstoneSize(r)
		total += size
		switch {
		case size > maxRecord && n == 0:
			return 1
		case n > 0 && (size > maxRecord || total > g.sink.maxBytes):
			return n
		}
	}
	return len(records)
}

// store sends one request. If the broker refuses it because of a record in it, and that record stands alone, the error
// is permanent.
func (g *group) store(ctx context.Context, records []int) (halve bool, err error) {
	err = g.produce(ctx, records)
	if err == nil || !g.sink.ofTheRecord(err) {
		return false, err
	}
	reason := reasonOf(err)
	if reason == sinks.ReasonTooLarge {
		size := g.sink.sizeOf(&g.Batch[records[0]])
		err = fmt.Errorf("a record of %d bytes (key %d, value %d, headers %d) is larger than its brokers take: %w",
			size.total(), size.key, size.value, size.headers, err)
	}
	return true, sinks.Permanent(reason, fmt.Errorf("topic %q: %w", g.topic, err))
}

// produce sends one request. What it returns is either [encoding.ofTheRecord] or classified as transient.
func (g *group) produce(ctx context.Context, records []int) error {
	s := g.sink
	select {
	case s.inFlight <- struct{}{}:
		defer func() { <-s.inFlight }()
	case <-ctx.Done():
		return g.wrap(ctx.Err())
	}
	if size := s.sizeOf(&g.Batch[records[0]]).wire(); len(records) == 1 && size > maxRequest {
		return kafka.MessageSizeTooLarge
	}
	refs := make([]*sinks.Record, len(records))
	for n, i := range records {
		refs[n] = &g.Batch[i]
	}
	reader := newReader(s.encoding, refs)
	defer reader.stop()
	response, err := s.client.Produce(ctx, &kafka.ProduceRequest{
		Topic: g.topic, Partition: g.partition, RequiredAcks: s.acks, Compression: s.compression, Records: reader,
	})
	if err == nil && response != nil { // with requiredAcks none there is no answer
		err = response.Error
	}
	if s.topics.note(g.topic, err); err == nil || s.ofTheRecord(err) {
		return err
	}
	if s.keyless(err) {
		err = fmt.Errorf("%w: a compacted topic takes no record without a key: set key, or the topic's cleanup.policy to delete", err)
	}
	if errors.Is(err, protocol.ErrNoTopic) || errors.Is(err, protocol.ErrNoPartition) {
		// It was there a moment ago: the pool has been replaced meanwhile, and the new one knows nothing. Why it
		// does not is what the user wants to know.
		if _, why := s.metadata(ctx, []string{g.topic}); why != nil {
			err = why
		}
	}
	s.refreshFor(err)
	return g.wrap(err)
}

func (g *group) wrap(err error) error {
	return transient(fmt.Errorf("send to topic %q, partition %d: %w", g.topic, g.partition, err))
}

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker]: it logs in, connects to every broker by the address that the cluster gives for it,
// and looks for the topic if its name holds no placeholder. Whether it may write shows only once it writes.
func (s *Sink) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	request := &kafka.MetadataRequest{}
	if s.fixedTopic != "" {
		request.Topics = []string{s.fixedTopic}
	}
	response, err := s.client.Metadata(ctx, request)
	if err != nil {
		return advise(fmt.Errorf("read metadata from %s: %w", s.brokers, err))
	}
	for _, broker := range response.Brokers {
		address := net.JoinHostPort(broker.Host, strconv.Itoa(broker.Port))
		conn, err := s.transport.Dial(ctx, "tcp", address)
		if err != nil {
			return sinks.Transient(reasonOf(err), fmt.Errorf(
				"broker %d cannot be reached at %s, where %s says it is: check advertised.listeners: %w", broker.ID, address, s.brokers, err))
		}
		_ = conn.Close()
	}
	for _, topic := range response.Topics {
		if topic.Error != nil && topic.Name == s.fixedTopic {
			return s.checkMissing(ctx, topic.Error)
		}
	}
	return nil
}

// checkMissing has the brokers say whether they would make the topic, if they are to.
func (s *Sink) checkMissing(ctx context.Context, why error) error {
	if reasonOf(why) != sinks.ReasonNotFound {
		return advise(fmt.Errorf("topic %q: %w", s.fixedTopic, why))
	}
	if !s.createTopics {
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("topic %q does not exist: create it, or set createTopics: true", s.fixedTopic))
	}
	response, err := s.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics:       []kafka.TopicConfig{{Topic: s.fixedTopic, NumPartitions: -1, ReplicationFactor: -1}},
		ValidateOnly: true,
	})
	if err == nil {
		err = response.Errors[s.fixedTopic]
	}
	if err == nil || errors.Is(err, kafka.TopicAlreadyExists) {
		return nil
	}
	return advise(fmt.Errorf("topic %q does not exist and cannot be created: %w", s.fixedTopic, err))
}

// advise adds what to do about err.
func advise(err error) error {
	var code kafka.Error
	advice := ""
	switch reason := reasonOf(err); {
	case errors.As(err, &code) && code == kafka.SASLAuthenticationFailed:
		advice = "check sasl.username and sasl.password or sasl.passwordFile"
	case errors.As(err, &code) && code == kafka.UnsupportedSASLMechanism:
		advice = "set sasl.mechanism to one that the brokers have"
	case errors.As(err, &code) && reason == sinks.ReasonUnauthorized:
		advice = "give the user the right to describe, write and, with createTopics, create it"
	case errors.As(err, &code):
		advice = "see the brokers"
	case reason == sinks.ReasonUnauthorized:
		advice = "check tls.certFile and tls.keyFile: the broker refuses the certificate"
	case reason == sinks.ReasonUnreachable, reason == sinks.ReasonTimeout:
		advice = "check brokers, and that this port speaks what tls and sasl say"
	}
	return sinks.Advise(transient(err), advice)
}
