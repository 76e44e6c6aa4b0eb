package pipeline

import (
	"context"
	"errors"
	"testing"
	"time"
)

// failingFirst refuses the first letters.
type failingFirst struct {
	letters
	left int
}

func (l *failingFirst) Write(ctx context.Context, letter Letter) error {
	if l.left > 0 {
		l.left--
		return errDown
	}
	return l.letters.Write(ctx, letter)
}

// The letters of an object are written in its order: replay sends them in theirs.
func TestLettersKeepTheOrderOfTheirObject(t *testing.T) {
	dead := &failingFirst{left: 1}
	p := start(t, &script{}, dead, func(o *Options) {
		o.Filters = []Filter{undecided{}}
		o.Limits.Concurrency, o.Limits.Linger = 1, 50*time.Millisecond // all of them in one batch
	})
	for version := 1; version <= 5; version++ {
		mustTake(t, p, change(t, "a", version))
	}
	drain(t, p)
	checkOrder(t, dead.ids())
	if n := len(dead.ids()); n != 5 {
		t.Errorf("got %d letters", n)
	}
}

// undecided is a filter that cannot decide: each change goes to the dead letter as it is.
type undecided struct{}

func (undecided) Pass(*Change) (bool, error) { return false, errors.New("no such key") }
func (undecided) OfObject() bool             { return false }
