package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

// apiPatience bounds one question to JetStream's API. A user without the right to ask it gets no answer.
const apiPatience = 3 * time.Second

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker]: it connects and logs in, and looks for the stream, or without a name for one that
// takes the subject. What in that stream breaks a promise is warned about in the log.
func (s *Sink) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	link, err := s.links.get(ctx)
	if err != nil {
		return advise(err)
	}
	if link.js == nil {
		if err := link.conn.FlushWithContext(ctx); err != nil {
			return advise(transient(fmt.Errorf("ping %s: %w", link.conn.ConnectedAddr(), err)))
		}
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	return s.stream.check(asking, link.js)
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

// advise adds what to do about the failure to connect.
func advise(err error) error {
	advice := ""
	switch class := sinks.Classify(err); {
	case class.Reason == sinks.ReasonUnauthorized:
		advice = "check credsFile, nkeySeedFile, username and its password, tokenFile, or tls.certFile: the server refuses what it gets"
	case is(err, nats.ErrSecureConnWanted):
		advice = "the server has no TLS: leave tls out, or enable it there"
	case tlsTrouble(err):
		advice = "check tls.caFile and tls.serverName"
	case class.Reason == sinks.ReasonUnreachable, class.Reason == sinks.ReasonTimeout:
		advice = "check urls, and that a NATS server listens there"
	default:
		return err
	}
	return sinks.Transient(sinks.Classify(err).Reason, fmt.Errorf("%w: %s", err, advice))
}
