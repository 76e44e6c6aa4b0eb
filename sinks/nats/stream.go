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

const (
	// apiPatience bounds one question to JetStream's API. A user without the right to ask it gets no answer.
	apiPatience = 3 * time.Second
	// startDelay leaves the program the time to say that it opened the sink for a check, which creates nothing.
	startDelay    = 500 * time.Millisecond
	maxStartDelay = 30 * time.Second
)

// stream makes sure of the stream at start or before the first record, and again after one was missing or made anew.
type stream struct {
	config  *Stream // nil: the user named none
	subject string
	log     *slog.Logger

	mu       sync.Mutex // guards what follows, and is held while asking the server
	known    bool
	lookOnly bool

	acks acks
}

// prepare does at start what the first record would have to wait for. It goes on until that is done or ctx ends: the
// server may come later than we do.
func (s *stream) prepare(ctx context.Context, links *links) {
	warned := false
	for delay := startDelay; ; delay = min(2*delay, maxStartDelay) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		link, err := links.get(ctx)
		if err == nil {
			err = s.ensure(ctx, link.js, true)
		}
		switch {
		case err == nil:
			return
		case ctx.Err() == nil && !warned:
			warned = true
			s.log.Warn("stream is not ready; looking again until it is", "stream", s.config.Name, "err", err)
		}
	}
}

// ensure creates the stream or looks at it; early says that there is no record yet. An error is only that the stream
// is to be created and cannot be, or can never acknowledge: to publish, no right to look is needed.
func (s *stream) ensure(ctx context.Context, js jetstream.JetStream, early bool) error {
	if s.config == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known || early && s.lookOnly {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	found, err := js.Stream(asking, s.config.Name)
	switch {
	case err == nil:
		if err := s.inspect(asking, js, &found.CachedInfo().Config); err != nil {
			return err
		}
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
	s.acks.reset()
}

// look keeps prepare from creating anything beside a check.
func (s *stream) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookOnly = true
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

// check is what [Sink.Check] does about the stream.
func (s *stream) check(ctx context.Context, link *link) error {
	js := link.js
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
		return s.checkCreate(ctx, link)
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
		if err := s.inspect(ctx, js, &info.Config); err != nil {
			return err
		}
	}
	return nil
}

// checkCreate looks for what would keep a run from creating the stream.
func (s *stream) checkCreate(ctx context.Context, link *link) error {
	wanted := s.wanted()
	cannot := func(format string, args ...any) error {
		return sinks.Transient(sinks.ReasonRejected, fmt.Errorf("stream %q does not exist and cannot be created: %s", wanted.Name, fmt.Sprintf(format, args...)))
	}
	if wanted.Replicas > 1 && link.conn.ConnectedClusterName() == "" {
		return cannot("stream.replicas is %d and %s is in no cluster: set stream.replicas: 1, or name a cluster in urls",
			wanted.Replicas, link.conn.ConnectedAddr())
	}
	for _, subject := range wanted.Subjects {
		names, err := namesOf(ctx, link.js, subject)
		if err != nil {
			s.log.Warn("whether the stream can be created cannot be checked", "stream", wanted.Name, "err", err)
			return nil
		}
		if len(names) > 0 {
			return cannot("its subject %s overlaps with those of stream %q: name that one in stream.name, or change stream.subjects",
				subject, strings.Join(names, " "))
		}
	}
	return nil
}

// namesOf returns the names of the streams that take a subject of the pattern.
func namesOf(ctx context.Context, js jetstream.JetStream, needed string) (names []string, err error) {
	list := js.StreamNames(ctx, jetstream.WithStreamListSubject(needed))
	for name := range list.Name() {
		names = append(names, name)
	}
	return names, list.Err()
}

// streamsOf returns the streams that take a subject of the pattern.
func streamsOf(ctx context.Context, js jetstream.JetStream, needed string) (found []*jetstream.StreamInfo, err error) {
	list := js.ListStreams(ctx, jetstream.WithStreamListSubject(needed))
	for info := range list.Info() {
		found = append(found, info)
	}
	return found, list.Err()
}
