package sinktest

import (
	"context"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

func closedWhileHanging(s *session) {
	s.open()
	s.accepted(s.deliver(NewRecord("a", 1)))
	s.peer.Hang()
	s.closeBounded()
	s.peer.Mend()
}

func closedWhileAway(s *session) {
	s.open()
	s.accepted(s.deliver(NewRecord("a", 1)))
	s.peer.Leave()
	s.closeBounded()
	s.peer.Mend()
}

// closeBounded closes the sink within a context that may be too short for it: it may fail then, and must return.
func (s *session) closeBounded() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 500*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.sink.Close(ctx) }()
	select {
	case err := <-done:
		s.addError(err)
	case <-time.After(500*time.Millisecond + patience):
		s.t.Errorf("Close has not returned %v after its context had ended", patience)
	}
}

// checker returns the sink as a [sinks.Checker], and ends the case if it is none.
func (s *session) checker() sinks.Checker {
	s.t.Helper()
	s.open()
	checker, ok := s.sink.(sinks.Checker)
	if !ok {
		s.t.Skip("not shown here: the sink is no sinks.Checker")
	}
	return checker
}

func check(s *session) {
	checker := s.checker()
	ctx, cancel := context.WithTimeout(s.t.Context(), reconnect)
	defer cancel()
	if err := checker.Check(ctx); err != nil {
		s.t.Errorf("Check with all well: %v", err)
	}
	if got := len(s.peer.Stored()); got > 0 {
		s.t.Errorf("Check sent %d records", got)
	}
	s.accepted(s.deliver(NewRecord("a", 1)))
}

func checkWhileHanging(s *session) {
	checker := s.checker()
	s.peer.Hang()
	ctx, cancel := context.WithTimeout(s.t.Context(), 500*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- checker.Check(ctx) }()
	select {
	case err := <-done:
		s.addError(err)
		if err == nil {
			s.t.Error("Check of a peer that does not answer: got no error")
		}
	case <-time.After(500*time.Millisecond + patience):
		s.t.Errorf("Check has not returned %v after its context had ended", patience)
	}
	s.peer.Mend()
}

func checkWhileAway(s *session) {
	checker := s.checker()
	s.peer.Leave()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	err := checker.Check(ctx)
	s.addError(err)
	s.retriable("Check while the peer is away", err, sinks.ReasonUnreachable, sinks.ReasonTimeout)
	s.peer.Mend()
	s.eventually(NewRecord("a", 1))
}
