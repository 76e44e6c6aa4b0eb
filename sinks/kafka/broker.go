package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	// metadataTTL bounds the age of the metadata; kafka-go reads it again after half of it on average, and also
	// gives a metadata request no longer than this.
	metadataTTL = 10 * time.Second
	// dialTimeout bounds the attempt on one address; kafka-go tries one broker after the other.
	dialTimeout = 3 * time.Second
	// quiet is the deadline of connections without a request; see conn.
	quiet = 20 * time.Second
)

// newTransport returns a transport whose connections end with ctx.
func newTransport(ctx context.Context, config *Config, fixedTopic, clientID string) *kafka.Transport {
	transport := &kafka.Transport{
		Dial:        dialer(ctx, config.TLS),
		DialTimeout: 3 * dialTimeout,
		MetadataTTL: metadataTTL,
		ClientID:    clientName(clientID),
		Context:     ctx,
	}
	if fixedTopic != "" {
		transport.MetadataTopics = []string{fixedTopic} // else of every topic of the cluster
	}
	if config.SASL != nil {
		transport.SASL = newMechanism(config.SASL)
	}
	return transport
}

// clientName makes a client id of a user agent: Kafka makes names of metrics and quotas of it.
func clientName(userAgent string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && topicByte(byte(r)) {
			return r
		}
		return '-'
	}, userAgent)
}

// dialer returns a function that connects to a broker, and does TLS itself: kafka.Transport takes one configuration for
// all brokers and for ever, and ours follows rotated files. The connections are closed when life ends.
func dialer(life context.Context, tlsConfig *sinks.TLS) sinks.DialFunc {
	dial := sinks.DialUntil(life, dialTimeout)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if tlsConfig == nil {
			return &conn{raw}, nil
		}
		secured, err := handshake(ctx, raw, tlsConfig, address)
		if err != nil {
			_ = raw.Close()
			return nil, fmt.Errorf("tls with %s: %w", address, err)
		}
		return &conn{secured}, nil
	}
}

func handshake(ctx context.Context, raw net.Conn, tlsConfig *sinks.TLS, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config, err := tlsConfig.Config(host)
	if err != nil {
		return nil, err
	}
	if err := tlsConfig.CheckFiles(); err != nil {
		return nil, err
	}
	secured := tls.Client(raw, config)
	return secured, secured.HandshakeContext(ctx)
}

// conn is a connection that is never without a deadline. kafka-go takes the deadline off before it logs in by SASL
// (connGroup.connect in transport.go), so a broker that went silent there would keep a goroutine for ever. Between
// requests nothing reads or writes, so that a deadline that passed does no harm: each request sets its own.
type conn struct{ net.Conn }

// SetDeadline implements [net.Conn].
func (c *conn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		t = time.Now().Add(quiet)
	}
	return c.Conn.SetDeadline(t)
}

// mechanism is a SASL mechanism that reads the password for each connection.
type mechanism struct {
	config *SASL
	file   *sinks.SecretFile
}

func newMechanism(config *SASL) *mechanism {
	m := &mechanism{config: config}
	if config.PasswordFile != "" {
		m.file = sinks.NewSecretFile("sasl.passwordFile", config.PasswordFile)
	}
	return m
}

// Name implements [sasl.Mechanism].
func (m *mechanism) Name() string {
	switch m.config.Mechanism {
	case saslSCRAM256:
		return scram.SHA256.Name()
	case saslSCRAM512:
		return scram.SHA512.Name()
	default:
		return plain.Mechanism{}.Name()
	}
}

// Start implements [sasl.Mechanism].
func (m *mechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	password := m.config.Password
	if m.file != nil {
		content, err := m.file.Read()
		if err != nil {
			return nil, nil, err
		}
		password = string(content)
	}
	inner := sasl.Mechanism(plain.Mechanism{Username: m.config.Username, Password: password})
	var err error
	switch m.config.Mechanism {
	case saslSCRAM256:
		inner, err = scram.Mechanism(scram.SHA256, m.config.Username, password)
	case saslSCRAM512:
		inner, err = scram.Mechanism(scram.SHA512, m.config.Username, password)
	}
	if err != nil {
		// A name or password that SASLprep refuses. Its text may quote it.
		return nil, nil, sinks.Transient(sinks.ReasonUnauthorized, fmt.Errorf("%s cannot be used with this username or password", m.config.Mechanism))
	}
	return inner.Start(ctx)
}

// partitions is a topic's list of partitions, or why there is none.
type partitions struct {
	ids []int
	err error
}

// lookup returns the partitions of topics from the metadata that requests are routed by. A topic that is missing is
// made if the configuration says so.
func (s *Sink) lookup(ctx context.Context, topics []string) (map[string]partitions, error) {
	found, err := s.metadata(ctx, topics)
	if err != nil || !s.createTopics {
		return found, err
	}
	var missing []string
	for _, topic := range topics {
		if err := found[topic].err; err != nil && reasonOf(err) == sinks.ReasonNotFound {
			missing = append(missing, topic)
		}
	}
	if len(missing) == 0 {
		return found, nil
	}
	failed, err := s.create(ctx, missing)
	if err != nil {
		return nil, err
	}
	if found, err = s.metadata(ctx, topics); err != nil {
		return nil, err
	}
	for topic, err := range failed {
		if found[topic].err != nil {
			found[topic] = partitions{err: err}
		}
	}
	return found, nil
}

func (s *Sink) metadata(ctx context.Context, topics []string) (map[string]partitions, error) {
	response, err := s.client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, transient(fmt.Errorf("read metadata from %s: %w", s.brokers, err))
	}
	found := make(map[string]partitions, len(topics))
	for _, topic := range response.Topics {
		var p partitions
		for _, partition := range topic.Partitions {
			p.ids = append(p.ids, partition.ID)
		}
		// The order must not depend on who is alive: the partition of a key would.
		slices.Sort(p.ids)
		switch {
		case topic.Error != nil:
			p.err = transient(fmt.Errorf("topic %q: %w", topic.Name, topic.Error))
		case len(p.ids) == 0:
			p.err = transient(fmt.Errorf("topic %q has no partitions yet: %w", topic.Name, kafka.LeaderNotAvailable))
		}
		found[topic.Name] = p
	}
	return found, nil
}

// create makes topics with the brokers' num.partitions and default.replication.factor (KIP-464), and waits until
// the transport knows them. The result says which could not be made.
func (s *Sink) create(ctx context.Context, topics []string) (map[string]error, error) {
	request := &kafka.CreateTopicsRequest{}
	for _, topic := range topics {
		request.Topics = append(request.Topics, kafka.TopicConfig{Topic: topic, NumPartitions: -1, ReplicationFactor: -1})
	}
	response, err := s.client.CreateTopics(ctx, request)
	if err != nil {
		return nil, transient(fmt.Errorf("create topics: %w", err))
	}
	failed := map[string]error{}
	for topic, err := range response.Errors {
		switch {
		case err == nil:
			s.log.Info("created topic", "topic", topic)
		case errors.Is(err, kafka.TopicAlreadyExists): // by another call or another program
			s.refresh(0)
		default:
			failed[topic] = transient(fmt.Errorf("create topic %q: %w", topic, err))
		}
	}
	return failed, nil
}

// fixed returns the topic of a template without placeholders, else "".
func fixed(topic sinks.Template) string {
	if topic.Fixed() {
		return topic.Expand(&sinks.Fields{}, topicByte)
	}
	return ""
}

// choose returns the partition of r's message.
func (s *Sink) choose(r *sinks.Record, ids []int) int {
	key, ok := s.keyOf(r)
	if !ok {
		return ids[int(s.turn.Add(1)-1)%len(ids)]
	}
	return partitionOf(key, ids)
}

// partitionOf is the choice of Java's client.
func partitionOf(key string, ids []int) int {
	return kafka.Murmur2Balancer{Consistent: true}.Balance(kafka.Message{Key: []byte(key)}, ids...)
}

// groups sorts the batch by topic and partition. Records without a partition get their error here.
func (s *Sink) groups(ctx context.Context, batch []sinks.Record, errs []error) []*group {
	topics := make([]string, len(batch))
	distinct := map[string]struct{}{}
	for i := range batch {
		topics[i], errs[i] = topicOf(s.topic, &batch[i])
		if errs[i] == nil {
			distinct[topics[i]] = struct{}{}
		}
	}
	if len(distinct) == 0 {
		return nil
	}
	found, err := s.lookup(ctx, slices.Sorted(maps.Keys(distinct)))
	if err != nil && !errors.Is(err, context.Canceled) {
		// Whatever the reason: a pool that failed to start tries again only in its own time.
		s.refresh(refreshAfterError)
	}

	type place struct {
		topic     string
		partition int
	}
	places := map[place]*group{}
	var groups []*group
	var missing error
	for i := range batch {
		switch topic := found[topics[i]]; {
		case errs[i] != nil:
		case err != nil:
			errs[i] = err
		case topic.err != nil:
			errs[i], missing = topic.err, topic.err
			s.topics.note(topics[i], topic.err)
		default:
			p := place{topics[i], s.choose(&batch[i], topic.ids)}
			g := places[p]
			if g == nil {
				g = &group{sink: s, topic: p.topic, partition: p.partition, Split: sinks.Split{Batch: batch, Errs: errs}}
				g.Fit, g.Request = g.fit, g.store
				places[p] = g
				groups = append(groups, g)
			}
			g.records = append(g.records, i)
		}
	}
	if missing != nil {
		s.refreshFor(missing)
	}
	return groups
}

// maxFailing bounds what is remembered where each object has a topic of its own.
const maxFailing = 1000

// topicLog warns once of a topic that takes nothing. The pipeline hears of it with each record, and knows no topics.
type topicLog struct {
	log *slog.Logger

	mu      sync.Mutex // guards what follows
	failing map[string]struct{}
}

// note sees what came of a request for the topic.
func (l *topicLog) note(topic string, err error) {
	if err != nil && !ofTheTopic(err) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.failing[topic]
	switch {
	case err == nil && known:
		delete(l.failing, topic)
		l.log.Info("topic takes records again", "topic", topic)
	case err != nil && !known && len(l.failing) < maxFailing:
		l.failing[topic] = struct{}{}
		l.log.Warn("topic takes no records; those for it wait", "topic", topic, "err", err)
	}
}

// ofTheTopic reports whether err would fail any record for the same topic, and those for others not.
func ofTheTopic(err error) bool {
	var code kafka.Error
	if errors.As(err, &code) {
		return code == kafka.TopicAuthorizationFailed || code == kafka.InvalidTopic || code == kafka.PolicyViolation ||
			reasonOfCode(code) == sinks.ReasonNotFound
	}
	return errors.Is(err, protocol.ErrNoTopic)
}
