package pipeline

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// TestCustomBody: what an expression makes null of is not sent, and counts as filtered; a gap as settled. One that fails is a dead letter.
func TestCustomBody(t *testing.T) {
	program, err := expr.Compile(`object == null ? (notice.from == "bad" ? notice.missing : null) : object.metadata.name.startsWith("a") ? {"text": object.metadata.name} : null`, expr.Body)
	if err != nil {
		t.Fatal(err)
	}
	sink, dead := &script{}, &letters{}
	p := start(t, sink, dead, func(o *Options) { o.Format, o.Body = shape.FormatCustom, &shape.Body{Program: program} })
	for n, name := range []string{"a1", "b1", "a2", "b2", "b3"} {
		mustTake(t, p, change(t, name, n+1))
	}
	for _, from := range []string{"5", "bad"} {
		if err := p.Gap(t.Context(), &delta.Gap{Watch: "w", Resource: pods, From: from, To: "9", Observed: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	mustTake(t, p, change(t, "a3", 10))
	drain(t, p)
	if s := p.Stats(); s.Filtered != 3 || s.filteredBy[0] != 3 || s.Delivered != 3 || s.GapsSettled != 2 || len(s.Dead) != 0 {
		t.Errorf("got %+v", s)
	}
	if got := fmt.Sprint(sink.storedIDs()); len(sink.storedIDs()) != 3 {
		t.Errorf("sent %s", got)
	}
	if ids := dead.ids(); fmt.Sprint(ids) != "[c/w/bad-9/GAP]" || dead.got[0].Record.Body != nil {
		t.Errorf("dead are %v", ids)
	}
}

// TestCustomLetters: a dead letter keeps a body, text too.
func TestCustomLetters(t *testing.T) {
	for text, want := range map[string]string{`"a\n\"b\""`: "a\n\"b\"", `[1]`: "[1]"} {
		program, err := expr.Compile(text, expr.Body)
		if err != nil {
			t.Fatal(err)
		}
		sink, dead := &script{}, &letters{}
		sink.set(func(int, []sinks.Record) error { return sinks.Permanent(sinks.ReasonTooLarge, errDown) })
		p := start(t, sink, dead, func(o *Options) { o.Format, o.Body = shape.FormatCustom, &shape.Body{Program: program} })
		mustTake(t, p, change(t, "a", 1))
		drain(t, p)
		line, err := json.Marshal(dead.got[0])
		if err != nil {
			t.Fatal(err)
		}
		letter, err := DecodeLetter(line)
		if err != nil || string(letter.Record.Content()) != want || !letter.Record.Custom {
			t.Errorf("got %s: %v", line, err)
		}
	}
}
