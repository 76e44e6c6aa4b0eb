package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	sched "github.com/kubeferry/kubeferry/pipeline/flow"
	"github.com/kubeferry/kubeferry/sinks"
)

// DeadLetter stores records that can never be delivered. A record whose letter cannot be written is not settled.
type DeadLetter interface {
	// Write writes the letters in order. It stops at the first that it cannot write, and returns how many it has written. It must not keep
	// the letters after it returns, because their bodies are reused.
	Write(ctx context.Context, letters []Letter) (written int, err error)
}

// Letter is a record that can never be delivered, and why.
type Letter struct {
	Pipeline string `json:"pipeline"`
	Sink     string `json:"sink"`
	Reason   string `json:"reason"`
	Error    string `json:"error"`
	// Attempts is how many of its failures count towards retry.attempts, at least 1. First and Last are when it failed first and last.
	Attempts int       `json:"attempts"`
	First    time.Time `json:"firstFailure"`
	Last     time.Time `json:"lastFailure"`
	// Record as it was, or would have been, sent. Its body is missing if it could not be made.
	Record sinks.Record `json:"record"`
}

// Encode returns the letter as JSON that can be read inside other JSON. A body that is nested too deeply for that, as a tenant's
// custom resource may be, is left out: else the record could never be settled, or the letters behind it not be read.
func (l Letter) Encode() ([]byte, error) {
	const inside, end = "[[[[", "]]]]"
	var b bytes.Buffer // of one size: letters may have many megabytes, and several are written at once
	b.WriteString(inside)
	err := json.NewEncoder(&b).Encode(l)
	length := b.Len()
	b.WriteString(end)
	if err == nil && json.Valid(b.Bytes()) {
		return b.Bytes()[len(inside) : length-len("\n")], nil
	}
	l.Record.Body = nil
	l.Error += " (the body is nested too deeply to be kept)"
	return json.Marshal(l)
}

// reasonAttempts is the reason of a record that failed as often as retry.attempts allows.
const reasonAttempts = "attempts"

// reasonRecovered is the reason of a record of which only an entry in a state file is left. No run has one.
const reasonRecovered = "recovered"

func deadReason(err *sinks.Error) string {
	if err != nil && err.Permanent {
		return string(err.Reason)
	}
	return reasonAttempts
}

// deadReasons lists every reason, so that a zero shows as zero.
func deadReasons() []string {
	reasons := []string{reasonAttempts}
	for _, reason := range sinks.Reasons() {
		reasons = append(reasons, string(reason))
	}
	return reasons
}

// writeDeadLetters writes the dead letters of a batch at once: each write may wait for a commit. One that cannot be written stays with its
// object, to be tried again, and so do those behind it: replay sends letters in the order in which they were written.
func (p *Pipeline) writeDeadLetters(ctx context.Context, b *batch, errs []*sinks.Error) {
	var letters []Letter
	var indices []int
	for n, i := range b.items {
		if b.Outcomes[n] != sched.Letter || i.noBody {
			continue
		}
		letter := Letter{
			Pipeline: p.options.Name, Sink: p.options.SinkName, Record: b.records[n],
			Reason: deadReason(errs[n]), Error: errs[n].Error(), Attempts: i.Attempts, First: i.Failed, Last: p.now(),
		}
		if i.delta != nil && i.delta.Bare || i.notice() && i.err != nil { // not what the record was: it must not be sent as if it were
			letter.Record.Body = nil
		}
		letters, indices = append(letters, letter), append(indices, n)
	}
	if len(letters) == 0 {
		return
	}
	written, err := p.options.DeadLetter.Write(ctx, letters)
	for k, n := range indices {
		p.noteLetter(ctx, b.items[n], letters[k], errs[n], k < written, err)
		if k >= written {
			p.mu.Lock()
			b.Outcomes[n], b.items[n].final = sched.Waits, errs[n]
			p.mu.Unlock()
		}
	}
}

// noteLetter logs that a letter was written, or was not.
func (p *Pipeline) noteLetter(ctx context.Context, i *item, letter Letter, cause *sinks.Error, written bool, err error) {
	log := p.logger.With("id", letter.Record.ID, "resource", delta.ResourceName(i.Ref.Resource),
		"namespace", i.Ref.Namespace, "name", i.Ref.Name, "reason", letter.Reason, "attempt", i.Attempts)
	switch {
	case !written:
		level := slog.LevelError
		if i.final != nil {
			level = slog.LevelDebug
		}
		log.Log(ctx, level, "cannot write a dead letter; the record waits", "err", err, "cause", cause)
	case letter.Reason == reasonAttempts:
		log.Error("a record becomes a dead letter: it failed as often as retry.attempts allows", "err", cause)
	default:
		log.Error("a record becomes a dead letter: it can never be delivered", "err", cause)
	}
}

// Recovered makes the dead letter of an entry of the pipeline's log, from a file that cannot be used any more.
func (p *Pipeline) Recovered(e delta.Entry) Letter {
	record, _, _ := p.encoder.Encode(nil, &e)
	if e.Delta != nil && e.Delta.Bare {
		record.Body = nil
	}
	return Letter{
		Pipeline: p.options.Name, Sink: p.options.SinkName, Record: record, Reason: reasonRecovered,
		Error:    cmp.Or(e.Unsendable, "recovered from a state file that was set aside"),
		Attempts: e.Attempts, First: e.Failed, Last: e.Failed,
	}
}

// NoLetters writes no letters: the error in the log is all that is kept. It is used if there is neither a state directory nor a sink for dead
// letters.
type NoLetters struct{}

// Write does nothing.
func (NoLetters) Write(_ context.Context, letters []Letter) (int, error) { return len(letters), nil }

// letterType is the type of a letter, for placeholders. It is not that of its record: behind a DELETED a sink may send
// what makes a compacted topic forget the key, and with it the letter.
const letterType = "DEAD"

// SinkLetters writes dead letters to a sink, one JSON object each that holds the whole record.
type SinkLetters struct {
	Sink    sinks.Sink
	Slots   *sched.Share
	Permit  Permit // nil permits all
	Timeout time.Duration
}

// Write sends one letter at a time, since a sink may limit its batches. It stops at the first that the sink does not acknowledge.
func (s SinkLetters) Write(ctx context.Context, letters []Letter) (written int, err error) {
	for _, letter := range letters {
		if err := s.write(ctx, letter); err != nil {
			return written, err
		}
		written++
	}
	return written, nil
}

func (s SinkLetters) write(ctx context.Context, letter Letter) error {
	body, err := letter.Encode()
	if err != nil {
		return err
	}
	fields := letter.Record.Fields
	fields.Type = letterType
	if err := s.Slots.Acquire(ctx); err != nil {
		return err
	}
	defer s.Slots.Release()
	ctx, leave, err := enter(ctx, s.Permit)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.Sink.Deliver(ctx, []sinks.Record{{
		ID: letter.Record.ID, DedupID: "dead/" + letter.Record.DedupID, Key: letter.Record.Key,
		ContentType: "application/json", BatchContentType: "application/json",
		Fields: fields, Body: body,
	}})
}

// DecodeLetter reads a letter as [SinkLetters] writes it. Its record's DedupID is the one it was first sent with, without
// the id of a snapshot.
func DecodeLetter(data []byte) (Letter, error) {
	var letter Letter
	if err := json.Unmarshal(data, &letter); err != nil {
		return Letter{}, err
	}
	if letter.Pipeline == "" || letter.Record.ID == "" {
		return Letter{}, errors.New("not a dead letter: it has no pipeline or no record")
	}
	letter.Record.DedupID = letter.Pipeline + "/" + letter.Record.ID
	return letter, nil
}
