package nats

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

// inspect warns of what in an existing stream breaks a promise. Its error is of a stream that nothing can be delivered to.
func (s *stream) inspect(ctx context.Context, js jetstream.JetStream, found *jetstream.StreamConfig) error {
	if found.NoAck {
		return sinks.Transient(sinks.ReasonRejected, fmt.Errorf(
			"stream %q acknowledges nothing (no_ack), so that each record would be sent for ever: set no_ack: false, or jetstream: false here", found.Name))
	}
	log := s.log.With("stream", found.Name)
	config := s.config
	if config == nil {
		config = &Stream{}
	}
	if !covered(found.Subjects, s.subject) {
		log.Warn("stream may not take every record", "subjects", strings.Join(found.Subjects, " "), "needed", pattern(s.subject),
			"others", s.others(ctx, js, found.Name))
	}
	if want := config.duplicates(); found.Duplicates < want {
		log.Warn("stream stores a record twice that is sent again after its duplicate window", "duplicates", found.Duplicates, "wanted", want)
	}
	switch found.Retention {
	case jetstream.InterestPolicy:
		log.Warn("stream acknowledges and does not store what no consumer asks for", "retention", found.Retention)
	case jetstream.WorkQueuePolicy:
		log.Warn("stream gives each record to one consumer and drops it then", "retention", found.Retention)
	case jetstream.LimitsPolicy:
	}
	if found.Storage == jetstream.MemoryStorage {
		log.Warn("stream loses what it holds when its servers stop", "storage", found.Storage)
	}
	if limits := config.drops(found); len(limits) > 0 {
		log.Warn("stream drops records by limits that are not in this configuration", "limits", strings.Join(limits, ", "))
	}
	return nil
}

// drops lists the limits by which the stream found drops what it stored, but for those that the user asked for. Age
// counts whatever the stream does when it is full; a full stream that refuses (DiscardNew) drops nothing, except within a
// subject, unless it refuses there too.
func (s *Stream) drops(found *jetstream.StreamConfig) (limits []string) {
	add := func(name string, limit any) { limits = append(limits, fmt.Sprintf("%s %v", name, limit)) }
	if found.MaxAge > 0 && found.MaxAge != s.MaxAge {
		add("maxAge", found.MaxAge)
	}
	if found.MaxMsgsPerSubject > 0 && !found.DiscardNewPerSubject {
		add("maxMsgsPerSubject", found.MaxMsgsPerSubject)
	}
	if found.Discard == jetstream.DiscardNew {
		return limits
	}
	if found.MaxBytes > 0 && found.MaxBytes != int64(s.MaxBytes) {
		add("maxBytes", found.MaxBytes)
	}
	if found.MaxMsgs > 0 {
		add("maxMsgs", found.MaxMsgs)
	}
	return limits
}

// others names the other streams that take some of the records, as far as this user may know.
func (s *stream) others(ctx context.Context, js jetstream.JetStream, name string) string {
	names, err := namesOf(ctx, js, pattern(s.subject))
	if err != nil {
		return "unknown"
	}
	return strings.Join(slices.DeleteFunc(names, func(other string) bool { return other == name }), " ")
}

// acks goes by what acknowledgements tell of the stream, at no cost. Its fields are shared by all calls.
type acks struct {
	highest atomic.Uint64 // sequence in an acknowledgement of a finished call
	strayed atomic.Bool   // another stream acknowledged, and that was warned of
}

func (a *acks) reset() {
	a.highest.Store(0)
	a.strayed.Store(false)
}

// watch is what one call sees. One goroutine owns it.
type watch struct {
	*stream
	before, highest uint64
	remade          bool
}

func (s *stream) watch() *watch {
	return &watch{stream: s, before: s.acks.highest.Load()}
}

// took sees an acknowledgement.
func (w *watch) took(ack *jetstream.PubAck) {
	switch {
	case w.config == nil:
	case ack.Stream != w.config.Name:
		if w.acks.strayed.CompareAndSwap(false, true) {
			w.log.Warn("records are stored by another stream than stream.name", "stream", w.config.Name, "other", ack.Stream)
		}
	case !ack.Duplicate: // else the sequence is that of the first time
		w.highest = max(w.highest, ack.Sequence)
		w.remade = w.remade || ack.Sequence <= w.before
	}
}

// end has the next call look at the stream again if it is not the one it was. A stream counts upwards, so that what was
// published after an acknowledgement had come has a higher sequence, unless the stream was deleted and made anew.
func (w *watch) end() {
	if w.remade {
		w.forget()
		return
	}
	for {
		known := w.acks.highest.Load()
		if w.highest <= known || w.acks.highest.CompareAndSwap(known, w.highest) {
			return
		}
	}
}
