package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// maxRefused bounds what is remembered of a connection that is denied one subject after the other.
const maxRefused = 4096

// errRefused stands for the server's line about one subject.
var errRefused = fmt.Errorf("no right to publish to it: %w", nats.ErrPermissionViolation)

// refusals are the permission violations that a server reported over one connection. It reports them on the side, by
// a line that names the subject; nats.go hands them to a callback.
type refusals struct {
	mu       sync.Mutex // guards what follows
	seq      int
	forgot   int            // seq when it was last unknown which subjects were refused
	subjects map[string]int // subject: seq of its last refusal
	inbox    error          // the subscription that acknowledgements come by was refused
	last     error          // of any kind
	changed  chan struct{}  // closed at the next report
}

func newRefusals() *refusals {
	return &refusals{subjects: map[string]int{}, changed: make(chan struct{})}
}

// report takes an error from nats.go's callback.
func (r *refusals) report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	r.last = err
	if errors.Is(err, nats.ErrPermissionViolation) {
		switch subject, publish := violated(err); {
		case !publish:
			r.inbox = err
		case subject == "" || len(r.subjects) >= maxRefused:
			clear(r.subjects)
			r.forgot = r.seq
		default:
			r.subjects[subject] = r.seq
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// mark returns a point in time for since.
func (r *refusals) mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq
}

// since reports whether subject was refused after mark. When in doubt it was.
func (r *refusals) since(mark int, subject string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.subjects[subject] > mark || r.forgot > mark
}

// state returns a channel that is closed at the next report, the last error reported, and the one that keeps
// acknowledgements away.
func (r *refusals) state() (changed <-chan struct{}, last, inbox error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed, r.last, r.inbox
}

// violated returns the subject of a violation, and whether publishing to it was refused (else subscribing). The
// server writes: Permissions Violation for Publish to "subject" (client.go, pubPermissionViolation). Servers may
// append to it.
func violated(err error) (subject string, publish bool) {
	_, rest, publish := strings.Cut(err.Error(), `Publish to "`)
	if !publish {
		return "", false
	}
	quoted, err := strconv.QuotedPrefix(`"` + rest)
	if err != nil {
		return "", true
	}
	subject, _ = strconv.Unquote(quoted) // it is quoted: QuotedPrefix says so
	return subject, true
}
