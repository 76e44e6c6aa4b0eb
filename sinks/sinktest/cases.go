package sinktest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// cases are run in this order; needs are the abilities without which a case shows nothing.
var cases = []struct {
	name  string
	needs []Ability
	run   func(*session)
}{
	{"acknowledged", nil, acknowledged},
	{"one record", nil, oneRecord},
	{"a full batch", nil, fullBatch},
	{"a large record", nil, largeRecord},
	{"empty batch", nil, emptyBatch},
	{"dedup id is kept", []Ability{DedupID}, acknowledged},
	{"key is kept", []Ability{Key}, acknowledged},
	{"headers are kept", []Ability{Headers}, acknowledged},
	{"attributes are kept", []Ability{Attributes}, attributes},
	{"concurrent", nil, concurrent},
	{"transient", []Ability{Fail}, transient},
	{"permanent", []Ability{Poison}, permanent},
	{"partly failed", []Ability{FailRecord}, partlyFailed},
	{"cancelled before", nil, cancelledBefore},
	{"cancelled while hanging", []Ability{Hang}, cancelledWhileHanging},
	{"records are let go", []Ability{Hang}, recordsAreLetGo},
	{"deadline while hanging", []Ability{Hang}, deadlineWhileHanging},
	{"away at open", []Ability{Leave}, awayAtOpen},
	{"away for a while", []Ability{Leave}, awayForAWhile},
	{"denied", []Ability{Deny}, denied},
	{"closed without use", nil, (*session).open},
	{"closed while hanging", []Ability{Hang}, closedWhileHanging},
	{"closed while away", []Ability{Leave}, closedWhileAway},
	{"check", nil, check},
	{"check while hanging", []Ability{Hang}, checkWhileHanging},
	{"check while away", []Ability{Leave}, checkWhileAway},
	{"no credential shows", []Ability{Credentials}, noCredentialShows},
}

func acknowledged(s *session) {
	s.open()
	s.accepted(s.deliver(series(30, "a", "b", "c")...))
	if got := len(s.peer.Stored()); got != 30 {
		s.t.Errorf("got %d records stored, want 30", got)
	}
}

// attributes sends CloudEvents in binary mode, with values that a header cannot hold as they are.
func attributes(s *session) {
	s.open()
	batch := series(6, "a", "b")
	for i := range batch {
		r := &batch[i]
		r.Headers, r.BatchContentType = nil, ""
		r.Attributes = map[string]string{
			"specversion": "1.0", "id": r.ID, "source": "/clusters/test", "type": "dev.kubeferry.resource.modified",
			"subject": r.Key, "note": "100% \"säure\" 世界\t\u007f",
		}
	}
	s.accepted(s.deliver(batch...))
	if got := len(s.peer.Stored()); got != len(batch) {
		s.t.Errorf("got %d records stored, want %d", got, len(batch))
	}
}

func oneRecord(s *session) {
	s.open()
	s.accepted(s.deliver(NewRecord("a", 1)))
}

func fullBatch(s *session) {
	s.open()
	n := s.config.Limits().MaxRecords
	names := []string{"a", "b", "c", "d"}
	if s.config.Limits().OnePerKey {
		names = nil
		for i := range n {
			names = append(names, fmt.Sprintf("object-%d", i))
		}
	}
	s.accepted(s.deliver(series(n, names...)...))
	if got := len(s.peer.Stored()); got != n {
		s.t.Errorf("got %d records stored, want %d", got, n)
	}
}

// largeRecord sends one record over MaxBytes: it travels alone, and is stored or refused for good. It must cost its
// neighbours nothing.
func largeRecord(s *session) {
	s.open()
	s.accepted(s.deliver(large("a", 200<<10)))
	limit := s.config.Limits().MaxBytes
	if limit > 8<<20 {
		return
	}
	batch := []sinks.Record{NewRecord("c", 1), NewRecord("d", 1), large("b", int(limit)+1), NewRecord("c", 2), NewRecord("d", 2)}
	for i, err := range s.deliver(batch...) {
		class := sinks.Classify(err)
		switch {
		case class == nil:
		case i != 2:
			s.t.Errorf("neighbour of the large record: got error %v", err)
		case !class.Permanent || class.Reason != sinks.ReasonTooLarge:
			s.t.Errorf("got error %v (%s, permanent %t), want none or a permanent %s",
				err, class.Reason, class.Permanent, sinks.ReasonTooLarge)
		}
	}
}

func emptyBatch(s *session) {
	s.open()
	if err := s.call(s.t.Context(), nil); err != nil {
		s.t.Errorf("got error %v for a batch of none", err)
	}
	if got := len(s.peer.Stored()); got != 0 {
		s.t.Errorf("got %d records stored for a batch of none", got)
	}
}

// concurrent uses the sink as heavily as its limits allow; run it with the race detector.
func concurrent(s *session) {
	s.open()
	var wg sync.WaitGroup
	for worker := range s.config.Limits().Concurrency {
		wg.Go(func() {
			for _, r := range series(8, fmt.Sprintf("w%d", worker), fmt.Sprintf("v%d", worker)) {
				for _, err := range s.deliver(r) {
					if err != nil {
						s.t.Errorf("worker %d: %v", worker, err)
					}
				}
			}
		})
	}
	wg.Wait()
	if got, want := len(s.peer.Stored()), 8*s.config.Limits().Concurrency; got != want {
		s.t.Errorf("got %d records stored, want %d", got, want)
	}
}

func transient(s *session) {
	s.open()
	batch := series(6, "a", "b")
	s.accepted(s.deliver(NewRecord("z", 1)))
	s.peer.Fail()
	for _, err := range s.deliver(batch...) {
		s.retriable("while the peer fails", err)
	}
	s.peer.Mend()
	s.eventually(batch...)
}

func permanent(s *session) {
	s.open()
	batch := []sinks.Record{
		NewRecord("a", 1), NewRecord("b", 1), NewRecord("a", 2), NewRecord("a", 3), NewRecord("c", 1), NewRecord("b", 2),
	}
	const poisoned = 2
	s.peer.Poison(&batch[poisoned])
	errs := s.deliver(batch...)

	refusal := errs[poisoned]
	if class := sinks.Classify(refusal); class != nil && !class.Permanent {
		// Its neighbours may hide it; alone it must be refused.
		refusal = s.deliver(batch[poisoned])[0]
	}
	switch class := sinks.Classify(refusal); {
	case class == nil:
		s.t.Fatal("the poisoned record was acknowledged")
	case !class.Permanent:
		s.t.Errorf("poisoned record: got error %q (%s), want a permanent one", refusal, class.Reason)
	}
	var left []sinks.Record
	for i, err := range errs {
		if i != poisoned && err != nil {
			s.retriable("neighbour of the poisoned record", err)
			left = append(left, batch[i])
		}
	}
	s.eventually(left...)
	for _, stored := range s.peer.Stored() {
		if idOf(stored.Body) == batch[poisoned].ID {
			s.t.Error("the poisoned record is stored: the harness did not poison it")
		}
	}
}

func partlyFailed(s *session) {
	s.open()
	batch := []sinks.Record{
		NewRecord("a", 1), NewRecord("b", 1), NewRecord("a", 2), NewRecord("b", 2), NewRecord("a", 3), NewRecord("c", 1),
	}
	const failing = 2
	s.peer.FailRecord(&batch[failing])
	errs := s.deliver(batch...)
	s.retriable("failing record", errs[failing])
	s.retriable("later record of its key", errs[failing+2])
	for _, err := range errs {
		if err != nil {
			s.retriable("neighbour of the failing record", err)
		}
	}
	s.peer.Mend()
	left, _ := unacknowledged(batch, errs)
	s.eventually(left...)
}

func cancelledBefore(s *session) {
	s.open()
	ctx, cancel := context.WithCancel(s.t.Context())
	cancel()
	for _, err := range s.deliverCtx(ctx, NewRecord("a", 1)) {
		s.retriable("with a cancelled context", err, sinks.ReasonCancelled)
	}
	s.accepted(s.deliver(NewRecord("a", 1)))
}

func cancelledWhileHanging(s *session) {
	s.open()
	s.accepted(s.deliver(NewRecord("z", 1)))
	s.peer.Hang()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	timer := time.AfterFunc(300*time.Millisecond, cancel)
	defer timer.Stop()
	batch := series(4, "a", "b")
	errs := s.deliverCtx(ctx, batch...)
	if ctx.Err() == nil {
		s.t.Fatalf("Deliver returned before its context ended: %v", errs)
	}
	for _, err := range errs {
		s.retriable("with a cancelled context", err, sinks.ReasonCancelled)
	}
	s.peer.Mend()
	s.eventually(batch...)
}

// recordsAreLetGo overwrites records as soon as Deliver has returned, as a pipeline may that uses its memory again. Run
// it with the race detector.
func recordsAreLetGo(s *session) {
	s.open()
	s.accepted(s.deliver(NewRecord("z", 1)))
	s.peer.Hang()
	ctx, cancel := context.WithTimeout(s.t.Context(), 300*time.Millisecond)
	defer cancel()
	batch := series(4, "a", "b")
	lent := clone(batch)
	for _, err := range s.deliverCtx(ctx, lent...) {
		s.retriable("past the deadline", err, sinks.ReasonTimeout)
	}
	s.mu.Lock()
	for i := range batch {
		if _, sent := s.want[batch[i].ID]; sent {
			s.want[batch[i].ID] = batch[i]
		}
	}
	s.mu.Unlock()
	for i := range lent {
		for n := range lent[i].Body {
			lent[i].Body[n] = '!'
		}
		for name := range lent[i].Headers {
			lent[i].Headers[name] = "!"
		}
	}
	s.peer.Mend()
	s.eventually(batch...)
}

func deadlineWhileHanging(s *session) {
	s.open()
	s.accepted(s.deliver(NewRecord("z", 1)))
	s.peer.Hang()
	ctx, cancel := context.WithTimeout(s.t.Context(), 300*time.Millisecond)
	defer cancel()
	batch := series(4, "a", "b")
	for _, err := range s.deliverCtx(ctx, batch...) {
		s.retriable("past the deadline", err, sinks.ReasonTimeout)
	}
	s.peer.Mend()
	s.eventually(batch...)
}

func awayAtOpen(s *session) {
	s.peer.Leave()
	s.open()
	batch := series(4, "a", "b")
	for _, err := range s.deliver(batch...) {
		s.retriable("while the peer is away", err, sinks.ReasonUnreachable)
	}
	s.peer.Mend()
	s.eventually(batch...)
}

func awayForAWhile(s *session) {
	s.open()
	s.accepted(s.deliver(NewRecord("z", 1)))
	s.peer.Leave()
	batch := series(4, "a", "b")
	for _, err := range s.deliver(batch...) {
		s.retriable("while the peer is away", err, sinks.ReasonUnreachable)
	}
	s.peer.Mend()
	s.eventually(batch...)
}

func denied(s *session) {
	s.peer.Deny()
	s.open()
	batch := series(2, "a", "b")
	for _, err := range s.deliver(batch...) {
		s.retriable("with credentials that are refused", err, sinks.ReasonUnauthorized)
	}
	s.peer.Mend()
	s.eventually(batch...)
}

// noCredentialShows makes the sink report as much as it can; finish searches it, as it does in every case.
func noCredentialShows(s *session) {
	s.open()
	s.deliver(NewRecord("a", 1))
	poisoned := NewRecord("b", 1)
	if s.peer.Poison != nil {
		s.peer.Poison(&poisoned)
		s.deliver(poisoned)
	}
	for _, lever := range []func(){s.peer.Fail, s.peer.Deny, s.peer.Leave} {
		if lever != nil {
			lever()
			s.deliver(NewRecord("c", 1))
			s.peer.Mend()
		}
	}
	s.eventually(NewRecord("c", 1))
	if len(s.errorTexts) == 0 {
		s.t.Error("the sink reported no error at all, so nothing was shown")
	}
}
