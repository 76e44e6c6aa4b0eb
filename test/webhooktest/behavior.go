package webhooktest

import (
	"net/http"
	"time"
)

// Answer is what a request gets. The zero value is not useful: give a status, or Hang, or Reset, or CloseAfter.
type Answer struct {
	Status     int
	RetryAfter time.Duration // sent in whole seconds
	RetryAt    time.Time     // sent as a date, if RetryAfter is not set
	Body       string
	Hang       bool // no answer until the sender gives up
	Reset      bool // the connection is reset after the request was read
	// CloseAfter is how long the sender waits before the connection is closed, in good order but without an answer.
	CloseAfter time.Duration
	// After is how long the answer takes. Whoever gives up meanwhile gets none, and the request counts as such.
	After time.Duration
	// Held, if it is set, holds the answer back until it is closed.
	Held <-chan struct{}
}

// Behavior decides on the answer to a request. Calls do not overlap.
type Behavior func(*Request) Answer

// Accept answers 200.
func Accept() Behavior { return Status(http.StatusOK) }

// Status always answers with the given status.
func Status(status int) Behavior {
	return func(*Request) Answer { return Answer{Status: status} }
}

// Always gives every request the same answer.
func Always(a Answer) Behavior {
	return func(*Request) Answer { return a }
}

// Sequence gives the answers one after the other, one per request, and then behaves as next.
func Sequence(next Behavior, answers ...Answer) Behavior {
	return func(r *Request) Answer {
		if len(answers) == 0 {
			return next(r)
		}
		a := answers[0]
		answers = answers[1:]
		return a
	}
}

// WhenID gives a to requests that contain a record whose id matches, and lets next decide on the others.
func WhenID(matches func(id string) bool, a Answer, next Behavior) Behavior {
	return func(r *Request) Answer {
		for _, record := range r.Records {
			if matches(record.ID) {
				return a
			}
		}
		return next(r)
	}
}
