package sinktest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// patience bounds what the contract calls "soon", and Open.
const patience = 2 * time.Second

// reconnect is how long a sink may take until it finds a peer that came back.
const reconnect = 20 * time.Second

// errHeld stands for a record that was not sent, because an earlier one of its key failed.
var errHeld = errors.New("held back behind an earlier record of its key")

// session is one case under way: a peer, a sink and what both should have.
type session struct {
	t      *testing.T
	peer   *Peer
	config sinks.Config
	sink   sinks.Sink
	logs   *logBuffer

	mu         sync.Mutex // guards what follows
	want       map[string]sinks.Record
	order      []string // ids, as they were first handed to the sink
	acked      []string
	errorTexts []string // error texts
}

// open opens the sink.
func (s *session) open() {
	s.t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	sink, err := s.config.Open(ctx, sinks.Env{
		Name: "under-test", UserAgent: "kubeferry/test",
		Logger: slog.New(slog.NewJSONHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		s.t.Fatalf("Open: %v", err)
	}
	if took := time.Since(start); took > patience {
		s.t.Errorf("Open took %v, want it not to wait for the peer", took)
	}
	s.sink = sink
	s.t.Cleanup(s.close) // for a case that ends early
}

func (s *session) close() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 5*time.Second)
	defer cancel()
	if err := s.sink.Close(ctx); err != nil {
		s.t.Errorf("Close: %v", err)
	}
}

// deliver sends records as a pipeline would: cut by the limits, each call with a deadline, later records of a key
// held back once one failed. The result is per record.
func (s *session) deliver(records ...sinks.Record) []error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	return s.deliverCtx(ctx, records...)
}

func (s *session) deliverCtx(ctx context.Context, records ...sinks.Record) []error {
	s.t.Helper()
	var errs []error
	failed := map[string]bool{}
	for len(records) > 0 {
		if failed[records[0].Key] {
			errs, records = append(errs, errHeld), records[1:]
			continue
		}
		n := cut(s.config.Limits(), records, failed)
		batch := errsOf(s.call(ctx, records[:n]), n)
		for i, err := range batch {
			if err != nil {
				failed[records[i].Key] = true
			}
		}
		errs, records = append(errs, batch...), records[n:]
	}
	return errs
}

// cut returns how many of the records fit into the next call.
func cut(limits sinks.Limits, records []sinks.Record, failed map[string]bool) int {
	var size int64
	keys := map[string]bool{}
	for i := range records {
		size += int64(records[i].Size())
		switch {
		case i == 0:
		case i >= limits.MaxRecords, size > limits.MaxBytes, failed[records[i].Key], limits.OnePerKey && keys[records[i].Key]:
			return i
		}
		keys[records[i].Key] = true
	}
	return len(records)
}

// call makes one Deliver call and records its result.
func (s *session) call(ctx context.Context, batch []sinks.Record) error {
	s.t.Helper()
	s.mu.Lock()
	for _, r := range batch {
		if _, known := s.want[r.ID]; !known {
			s.order = append(s.order, r.ID)
		}
		s.want[r.ID] = r
	}
	s.mu.Unlock()

	before := clone(batch)
	err := s.bounded(ctx, batch)

	s.mu.Lock()
	defer s.mu.Unlock()
	if !equal(before, batch) {
		s.t.Error("Deliver modified the batch")
	}
	if err != nil {
		s.errorTexts = append(s.errorTexts, err.Error(), fmt.Sprintf("%+v", err))
	}
	var partial *sinks.BatchError
	if errors.As(err, &partial) && len(partial.Errs) != len(batch) {
		s.t.Errorf("BatchError has %d results for %d records", len(partial.Errs), len(batch))
	}
	failed := map[string]string{}
	for i, e := range sinks.PerRecord(err, len(batch)) {
		r := batch[i]
		if e != nil {
			s.errorTexts = append(s.errorTexts, e.Error())
			failed[r.Key] = r.ID
			continue
		}
		if earlier, ok := failed[r.Key]; ok {
			s.t.Errorf("%s was acknowledged after %s, of the same key, failed in the same call", r.ID, earlier)
		}
		s.acked = append(s.acked, r.ID)
	}
	return err
}

// bounded calls Deliver and gives up on it if it goes on for long after ctx ended.
func (s *session) bounded(ctx context.Context, batch []sinks.Record) error {
	s.t.Helper()
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(patience, func() { close(late) }) })
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.sink.Deliver(ctx, batch) }()
	select {
	case err := <-done:
		return err
	case <-late:
		s.t.Errorf("Deliver has not returned %v after its context had ended", patience)
		return ctx.Err()
	}
}

// addError keeps an error, to be searched for credentials.
func (s *session) addError(err error) {
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.errorTexts = append(s.errorTexts, err.Error())
	}
}

func errsOf(err error, n int) []error { return slices.Clone(sinks.PerRecord(err, n)) }

// accepted fails the case unless every record was acknowledged.
func (s *session) accepted(errs []error) {
	s.t.Helper()
	for i, err := range errs {
		if err != nil {
			s.t.Fatalf("record %d: got error %v, want it acknowledged", i, err)
		}
	}
}

// retriable fails the case unless err is one that may pass; reasons, if given, are the ones it may have.
func (s *session) retriable(what string, err error, reasons ...sinks.Reason) {
	s.t.Helper()
	class := sinks.Classify(err)
	switch {
	case class == nil:
		s.t.Errorf("%s: got no error", what)
	case class.Permanent:
		s.t.Errorf("%s: got permanent error %q, want one that may pass", what, err)
	case len(reasons) > 0 && !errors.Is(err, errHeld) && !slices.Contains(reasons, class.Reason):
		s.t.Errorf("%s: got reason %s (%v), want one of %v", what, class.Reason, err, reasons)
	}
}

// eventually sends what was not acknowledged again until all of it is.
func (s *session) eventually(records ...sinks.Record) {
	s.t.Helper()
	var errs []error
	for deadline := time.Now().Add(reconnect); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		errs = s.deliver(records...)
		records, errs = unacknowledged(records, errs)
		if len(records) == 0 {
			return
		}
	}
	s.t.Fatalf("%d records still not acknowledged after %v: %v", len(records), reconnect, errs[0])
}

func unacknowledged(records []sinks.Record, errs []error) (left []sinks.Record, why []error) {
	for i, err := range errs {
		if err != nil {
			left, why = append(left, records[i]), append(why, err)
		}
	}
	return left, why
}

// finish closes the sink (its Cleanup does so again) and checks what must hold in every case.
func (s *session) finish() {
	s.t.Helper()
	s.close()
	s.checkStored()
	s.checkSecrets()
}

func (s *session) checkStored() {
	s.t.Helper()
	arrived := map[string]int{}
	got := map[string][]string{}
	for _, stored := range s.peer.Stored() {
		id := idOf(stored.Body)
		r, known := s.want[id]
		if !known {
			s.t.Errorf("the peer has a record that nobody sent: %.100q", stored.Body)
			continue
		}
		if !bytes.Equal(bytes.TrimSpace(stored.Body), bytes.TrimSpace(r.Body)) {
			s.t.Errorf("%s: got body %.200q, want %.200q", id, stored.Body, r.Body)
		}
		s.checkAttributes(&r, &stored)
		if arrived[id]++; arrived[id] == 1 {
			got[r.Key] = append(got[r.Key], id)
		}
	}
	for _, id := range s.acked {
		if arrived[id] == 0 {
			s.t.Errorf("%s was acknowledged, and the peer does not have it", id)
		}
	}
	want := map[string][]string{}
	for _, id := range s.order {
		if arrived[id] > 0 {
			key := s.want[id].Key
			want[key] = append(want[key], id)
		}
	}
	for key, ids := range want {
		if !slices.Equal(got[key], ids) {
			s.t.Errorf("first arrivals of key %s: got %q, want %q", key, got[key], ids)
		}
	}
}

func (s *session) checkAttributes(r *sinks.Record, stored *Stored) {
	s.t.Helper()
	if _, cannot := s.peer.Cannot[DedupID]; !cannot && stored.DedupID != r.DedupID {
		s.t.Errorf("%s: got dedup id %q, want %q", r.ID, stored.DedupID, r.DedupID)
	}
	if _, cannot := s.peer.Cannot[Key]; !cannot && stored.Key != r.Key && stored.Key != r.PartitionKey() {
		s.t.Errorf("%s: got key %q, want %q", r.ID, stored.Key, r.Key)
	}
	if _, cannot := s.peer.Cannot[Headers]; !cannot {
		for name, value := range r.Headers {
			if stored.Headers[name] != value {
				s.t.Errorf("%s: got header %s %q, want %q", r.ID, name, stored.Headers[name], value)
			}
		}
	}
	if _, cannot := s.peer.Cannot[Attributes]; !cannot && r.Attributes != nil {
		want := maps.Clone(r.Attributes)
		want["datacontenttype"] = r.ContentType
		if !maps.Equal(stored.Attributes, want) {
			s.t.Errorf("%s: got attributes %q, want %q", r.ID, stored.Attributes, want)
		}
	}
}

// checkSecrets searches errors and logs of the sink for credentials, also in the forms that they take on the wire.
func (s *session) checkSecrets() {
	s.t.Helper()
	said := strings.Join(append(s.errorTexts, s.logs.String()), "\n")
	for i, secret := range s.peer.Secrets {
		forms := []string{secret, url.QueryEscape(secret), url.PathEscape(secret)}
		// Within base64 of "user:secret" the secret may begin at any of three offsets; the middle is the same.
		for _, lead := range []string{"", "u", "us"} {
			coded := base64.RawStdEncoding.EncodeToString([]byte(lead + secret))
			forms = append(forms, coded[4:len(coded)-2])
		}
		for _, form := range forms {
			if strings.Contains(said, form) {
				s.t.Errorf("credential %d shows in an error or a log line (as %q)", i, form)
				break
			}
		}
	}
}

func idOf(body []byte) string {
	var v struct{ ID string }
	if json.Unmarshal(body, &v) != nil {
		return ""
	}
	return v.ID
}

// logBuffer is a strings.Builder for several goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
