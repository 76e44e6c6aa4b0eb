package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker]: it connects and logs in, and looks for the stream, or without a name for one that
// takes the subject. It logs a warning of what in that stream breaks a promise.
func (s *Sink) Check(ctx context.Context) error {
	return s.detached(ctx, s.check)
}

func (s *Sink) check(ctx context.Context) error {
	link, err := s.connection()
	if err != nil {
		return advise(err)
	}
	if link.js == nil {
		if err := link.conn.FlushWithContext(ctx); err != nil {
			return advise(transient(fmt.Errorf("ping %s: %w", link.conn.ConnectedAddr(), err)))
		}
		return nil
	}
	looking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if err := link.cause(s.stream.check(looking, link.js)); err != nil || ctx.Err() == nil {
		return err
	}
	return transient(fmt.Errorf("check the stream: %w", ctx.Err()))
}

func advise(err error) error {
	return sinks.Advise(err, "check credsFile, nkeySeedFile, username and its password, tokenFile, or tls.certFile",
		"check urls and tls, and that a NATS server listens there")
}

// check is what [Sink.Check] does about the stream.
func (s *stream) check(ctx context.Context, js jetstream.JetStream) (err error) {
	needed := pattern(s.subject)
	names := []string{s.Name}
	if s.Name == "" {
		list := js.StreamNames(ctx, jetstream.WithStreamListSubject(needed))
		names = nil
		for name := range list.Name() {
			names = append(names, name)
		}
		if err = list.Err(); err == nil && len(names) == 0 {
			return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("no stream takes the subject %s: create one, or set stream.name and stream.create: true", needed))
		}
	}
	for i := 0; err == nil && i < len(names); i++ {
		err = s.checkOne(ctx, js, names[i], needed)
	}
	var classified *sinks.Error
	switch {
	case err == nil, errors.As(err, &classified):
		return err
	case errors.Is(err, jetstream.ErrStreamNotFound) && s.Create:
		return nil // the first record makes it
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("stream %q does not exist: create it for the subject %s, or set stream.create: true", s.Name, needed))
	case is(err, jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount, nats.ErrNoResponders):
		return sinks.Transient(sinks.ReasonUnavailable, fmt.Errorf("JetStream is not enabled for this user: enable it, or set jetstream: false: %w", err))
	case is(err, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrPermissionViolation):
		s.log.Warn("stream cannot be checked: JetStream does not answer, or this user has no right to request it", "err", err)
		return nil // to publish, no right to look is needed
	default:
		return transient(fmt.Errorf("look for stream %q: %w", s.Name, err))
	}
}

// checkOne checks an existing stream.
func (s *stream) checkOne(ctx context.Context, js jetstream.JetStream, name, needed string) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	config := &stream.CachedInfo().Config
	if !slices.ContainsFunc(config.Subjects, func(filter string) bool { return overlaps(filter, needed) }) {
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("stream %q takes %s and not the subject %s: add it to the stream, or change subject",
			name, strings.Join(config.Subjects, " "), needed))
	}
	return s.inspect(config)
}
