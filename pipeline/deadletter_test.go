package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
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

// A record that is nested as deeply as the API server allows leaves a letter that can be read among others.
func TestLetterOfADeepObject(t *testing.T) {
	for _, depth := range []int{9_990, 10_000, 10_003} {
		body := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		encoded, err := Letter{Pipeline: "p", Record: sinks.Record{ID: "c/u/1/ADDED", Body: []byte(body)}}.Encode()
		if err != nil {
			t.Fatalf("%d levels: %v", depth, err)
		}
		letter, err := DecodeLetter(encoded)
		kept := string(letter.Record.Body) == body
		if err != nil || letter.Record.ID != "c/u/1/ADDED" || kept != (depth < 10_000) || kept == strings.Contains(letter.Error, "too deeply") {
			t.Errorf("%d levels: kept %v, %q, %v", depth, kept, letter.Error, err)
		}
		var all []struct{ Letter json.RawMessage }
		if err := json.Unmarshal(fmt.Appendf(nil, `[{"letter":%s}]`, encoded), &all); err != nil {
			t.Errorf("%d levels: %v", depth, err)
		}
	}
}
