package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	// apiTimeout bounds one request to JetStream's API. A user without the right to it gets no answer.
	apiTimeout = 3 * time.Second

	defaultDuplicates = 10 * time.Minute
)

// stream checks the stream, or creates it: before the first record, and again after it was missing.
type stream struct {
	Stream  // without a name if the user named none
	subject string
	log     *slog.Logger

	mu    sync.Mutex // guards known, also during requests to the server
	known bool

	strayed sync.Once // another stream acknowledged
}

// ensure creates the stream or checks it. It fails only if the stream cannot be created, or can never acknowledge: a user may
// publish without the right to read the stream's configuration.
func (s *stream) ensure(ctx context.Context, js jetstream.JetStream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Name == "" || s.known {
		return nil
	}
	looking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	found, err := js.Stream(looking, s.Name)
	switch {
	case err == nil:
		err = s.inspect(&found.CachedInfo().Config)
	case ctx.Err() != nil:
		return ctx.Err()
	case !s.Create:
		s.log.Warn("stream cannot be checked", "stream", s.Name, "err", err)
		err = nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		err = s.create(ctx, js)
	default:
		err = transient(fmt.Errorf("look for stream %q: %w", s.Name, err))
	}
	s.known = err == nil
	return err
}

// forget makes the next call look again.
func (s *stream) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = false
}

func (s *stream) create(ctx context.Context, js jetstream.JetStream) error {
	config := s.wanted()
	_, err := js.CreateStream(ctx, config)
	switch {
	case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse): // another program has created it meanwhile
		return nil
	case err != nil:
		return transient(fmt.Errorf("create stream %q: %w", s.Name, err))
	}
	s.log.Info("created stream", "stream", config.Name, "subjects", strings.Join(config.Subjects, " "))
	return nil
}

// wanted is the stream to create. Unless configured, it drops the oldest records when it is full, as a log does.
func (s *stream) wanted() jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:        s.Name,
		Description: "changes of Kubernetes objects, written by kubeferry",
		Subjects:    s.Subjects,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		MaxAge:      s.MaxAge,
		MaxBytes:    int64(s.MaxBytes), // 0 for no bound
		Replicas:    max(s.Replicas, 1),
		Duplicates:  s.duplicates(),
	}
	if s.Discard == discardNew {
		config.Discard = jetstream.DiscardNew
	}
	if len(config.Subjects) == 0 {
		config.Subjects = []string{pattern(s.subject)}
	}
	return config
}

// duplicates is the window to configure. The server refuses one longer than maxAge.
func (s *Stream) duplicates() time.Duration {
	window := cmp.Or(s.Duplicates, defaultDuplicates)
	if s.MaxAge > 0 {
		window = min(window, s.MaxAge)
	}
	return window
}

// inspect warns of what in an existing stream loses records that it acknowledged. How long a stream keeps them is its owner's choice. The
// error is of a stream that nothing can be delivered to.
func (s *stream) inspect(found *jetstream.StreamConfig) error {
	if found.NoAck {
		return sinks.Transient(sinks.ReasonRejected, fmt.Errorf(
			"stream %q acknowledges nothing (no_ack), so that each record would be sent for ever: set no_ack: false, or jetstream: false here", found.Name))
	}
	log := s.log.With("stream", found.Name)
	if found.Retention == jetstream.InterestPolicy {
		log.Warn("the stream acknowledges records that no consumer wants, and does not store them", "retention", found.Retention)
	}
	if found.Storage == jetstream.MemoryStorage {
		log.Warn("the stream keeps records in memory, and loses them when its servers stop", "storage", found.Storage)
	}
	if found.PersistMode == jetstream.AsyncPersistMode {
		log.Warn("the stream acknowledges records before they are on disk, so a server that is killed loses them", "persistMode", found.PersistMode)
	}
	return nil
}

// observe looks at the result of a record.
func (s *stream) observe(d *delivery) {
	switch {
	case s.Name == "":
	case d.err != nil && reasonOf(d.err) == sinks.ReasonNotFound:
		s.forget()
	case d.ack != nil && d.ack.Stream != s.Name:
		s.strayed.Do(func() {
			s.log.Warn("records are stored by another stream than stream.name", "stream", s.Name, "other", d.ack.Stream)
		})
	}
}
