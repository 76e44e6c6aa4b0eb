package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

// apiPatience bounds one question to JetStream's API. A user without the right to ask it gets no answer.
const apiPatience = 3 * time.Second

// stream makes sure of the stream before the first record, and again after one was missing.
type stream struct {
	config  *Stream // nil: the user named none
	subject string
	log     *slog.Logger

	mu    sync.Mutex // guards what follows, and is held while asking the server
	known bool
}

// ensure creates the stream or looks at it. Only a stream that is to be created and cannot be is an error: to
// publish, no right to look is needed.
func (s *stream) ensure(ctx context.Context, js jetstream.JetStream) error {
	if s.config == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	found, err := js.Stream(asking, s.config.Name)
	switch {
	case err == nil:
		s.inspect(&found.CachedInfo().Config)
	case ctx.Err() != nil:
		return ctx.Err()
	case !s.config.Create:
		s.log.Warn("stream cannot be checked", "stream", s.config.Name, "err", err)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if err = s.create(ctx, js); err != nil {
			return transient(fmt.Errorf("create stream %q: %w", s.config.Name, err))
		}
	default:
		return transient(fmt.Errorf("look for stream %q: %w", s.config.Name, err))
	}
	s.known = true
	return nil
}

// forget has the next call look again.
func (s *stream) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = false
}

func (s *stream) create(ctx context.Context, js jetstream.JetStream) error {
	config := s.wanted()
	_, err := js.CreateStream(ctx, config)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil // made by somebody else meanwhile
	}
	if err == nil {
		s.log.Info("created stream", "stream", config.Name, "subjects", strings.Join(config.Subjects, " "))
	}
	return err
}

// wanted is the stream to create. It drops the oldest when it is full, as a log does: a stream that refuses new
// records instead would stop the pipeline for good.
func (s *stream) wanted() jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:        s.config.Name,
		Description: "changes of Kubernetes objects, written by kubeferry",
		Subjects:    s.config.Subjects,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		MaxAge:      s.config.MaxAge,
		MaxBytes:    -1,
		Replicas:    max(s.config.Replicas, 1),
		Duplicates:  s.config.duplicates(),
	}
	if len(config.Subjects) == 0 {
		config.Subjects = []string{pattern(s.subject)}
	}
	if s.config.MaxBytes > 0 {
		config.MaxBytes = int64(s.config.MaxBytes)
	}
	return config
}

// inspect warns of what in an existing stream breaks a promise.
func (s *stream) inspect(found *jetstream.StreamConfig) {
	log := s.log.With("stream", found.Name)
	config := s.config
	if config == nil {
		config = &Stream{}
	}
	if !covered(found.Subjects, s.subject) {
		log.Warn("stream may not take every record", "subjects", strings.Join(found.Subjects, " "), "needed", pattern(s.subject))
	}
	if want := config.duplicates(); found.Duplicates < want {
		log.Warn("stream stores a record twice that is sent again after its duplicate window", "duplicates", found.Duplicates, "wanted", want)
	}
	limited := found.MaxMsgs > 0 || found.MaxMsgsPerSubject > 0 ||
		found.MaxBytes > 0 && found.MaxBytes != int64(config.MaxBytes) ||
		found.MaxAge > 0 && found.MaxAge != config.MaxAge
	if found.Discard == jetstream.DiscardOld && limited {
		log.Warn("stream drops records by limits that are not in this configuration", "maxAge", found.MaxAge,
			"maxBytes", found.MaxBytes, "maxMsgs", found.MaxMsgs, "maxMsgsPerSubject", found.MaxMsgsPerSubject)
	}
}

func (s *stream) check(ctx context.Context, js jetstream.JetStream) error {
	needed := pattern(s.subject)
	var found []*jetstream.StreamInfo
	var err error
	if s.config == nil {
		found, err = streamsOf(ctx, js, needed)
	} else {
		var stream jetstream.Stream
		if stream, err = js.Stream(ctx, s.config.Name); err == nil {
			found = append(found, stream.CachedInfo())
		}
	}
	name := ""
	if s.config != nil {
		name = fmt.Sprintf(" %q", s.config.Name)
	}
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && s.config.Create:
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("stream%s does not exist: create it for the subject %s, or set stream.create: true", name, needed))
	case is(err, jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount, nats.ErrNoResponders):
		return sinks.Transient(sinks.ReasonUnavailable, fmt.Errorf("JetStream is not enabled for this user: enable it, or set jetstream: false: %w", err))
	case is(err, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrPermissionViolation):
		s.log.Warn("stream cannot be checked: JetStream does not answer, or this user may not ask", "err", err)
		return nil // to publish, no right to look is needed
	case err != nil:
		return transient(fmt.Errorf("look for stream%s: %w", name, err))
	case len(found) == 0:
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("no stream takes the subject %s: create one, or set stream.name and stream.create: true", needed))
	}
	for _, info := range found {
		if !slices.ContainsFunc(info.Config.Subjects, func(filter string) bool { return overlaps(filter, needed) }) {
			return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("stream %q takes %s and not the subject %s: add it to the stream, or change subject",
				info.Config.Name, strings.Join(info.Config.Subjects, " "), needed))
		}
		s.inspect(&info.Config)
	}
	return nil
}

// streamsOf returns the streams that take a subject of the pattern.
func streamsOf(ctx context.Context, js jetstream.JetStream, needed string) (found []*jetstream.StreamInfo, err error) {
	list := js.ListStreams(ctx, jetstream.WithStreamListSubject(needed))
	for info := range list.Info() {
		found = append(found, info)
	}
	return found, list.Err()
}
