package kafka

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/kubeferry/kubeferry/sinks"
)

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
