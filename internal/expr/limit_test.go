package expr

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// briefInput has the lower limit, at which an evaluation stops in a hundredth of the time.
type briefInput struct{ *input }

func (briefInput) Brief() bool  { return true }
func (briefInput) Spent(uint64) {}

// TestLimitBoundsTime: whoever may create an object decides how long its lists are, not how long an evaluation takes, nor how much it
// allocates. What the limit does not stop is evaluated with the whole of it; the rest with the lower one, to be quick.
func TestLimitBoundsTime(t *testing.T) {
	var texts, lists, same []any
	for i := range 20_000 {
		texts = append(texts, fmt.Sprint("f-", i))
	}
	for i := range 330 {
		items := make([]any, 0, 1501)
		for range 1500 {
			items = append(items, int64(1))
		}
		lists = append(lists, append(items, int64(i)))
	}
	for i := range 300 {
		same = append(same, strings.Repeat("a", 2000)+fmt.Sprint(i))
	}
	in := &input{typ: "MODIFIED", object: map[string]any{
		"l": texts, "few": texts[:900], "one": lists[0], "digits": strings.Repeat("1", 300_000), "d": lists, "s": same, "a": strings.Repeat("a", 500_000), "b": strings.Repeat("a", 250_000) + "b",
	}}
	// Not bounded, most take minutes, or gigabytes. With the race detector on a busy machine bounded ones may take a second.
	const slow, much = 20 * time.Second, 200 << 20
	for _, tc := range []struct {
		text string
		want string // true, false, or limit
	}{
		{`object.l.all(x, x in object.l)`, "limit"},
		{`object.l.map(x, object.l.indexOf(x)).size() > 0`, "limit"},
		{`object.l.map(x, object.l.lastIndexOf(x)).size() > 0`, "limit"},
		{`sets.equivalent(object.l, object.l)`, "limit"},
		{`sets.contains(object.l, ["f-1", "none"])`, "false"},
		{`object.l.hasExactly(object.l)`, "limit"},
		{`object.l.distinct().size() == 20000`, "limit"},
		{`object.l.sort().size() == 20000`, "limit"},
		{`object.l.all(x, object.l.distinct().size() > 0)`, "limit"},
		{`object.l.all(x, object.l.sort().size() > 0)`, "limit"},
		{`object.l.all(x, object.l.join(",") != "")`, "limit"},
		{`object.l.all(x, object.l.reverse().size() > 0)`, "limit"},
		{`object.l.all(x, object.l == object.l)`, "limit"},
		{`object.l.all(x, object.l.max() != "")`, "limit"},
		{`object.d.all(x, object.d.filter(y, y == x).size() == 1)`, "limit"},
		{`object.d.all(x, x in object.d)`, "limit"},
		{`object.d.all(x, object.d.indexOf(x) >= 0)`, "limit"},
		{`object.d.distinct().size() == 330`, "limit"},
		{`sets.equivalent(object.d, object.d)`, "limit"},
		{`object.l.all(x, object.a + object.a != "")`, "limit"},
		{`object.l.all(x, object.a < object.b)`, "limit"},
		{`object.l.all(x, object.a == object.a)`, "limit"},
		{`object.a.indexOf("b")`, "-1"},
		{`object.a.indexOf(object.b)`, "limit"},
		{`object.a.lastIndexOf(object.b)`, "limit"},
		{`object.l.all(x, object.s.max() != "")`, "limit"},
		{`object.l.all(x, object.s.isSorted() || true)`, "limit"},
		{`object.l.all(x, object.a.contains(object.b) || true)`, "limit"},
		{`object.l.all(x, object.a.matches("a*b") || true)`, "limit"},
		{`object.l.all(x, object.a.startsWith(object.a))`, "limit"},
		{`object.l.all(x, object.a.replace("a", "b") != "")`, "limit"},
		{`object.l.all(x, object.a.split("").size() > 0)`, "limit"},
		{`object.l.all(x, object.a.lowerAscii() != "")`, "limit"},
		{`object.l.all(x, object.l.flatten().size() > 0)`, "limit"},
		{`object.l.all(x, object.l.slice(0, 10000).size() > 0)`, "limit"},
		{`object.l.all(x, string(bytes(object.a)) != "")`, "limit"},
		{`object.l.all(x, "%s".format([object.l]) != "")`, "limit"},
		{`object.l.all(x, lists.range(1000).size() > 0)`, "limit"},
		{`object.l.all(x, object.a.substring(1) != "")`, "limit"},
		{`object.l.all(x, object.a.size() > 0)`, "limit"},
		{`object.l.all(x, object.a.charAt(400000) == "a")`, "limit"},
		{`object.l.all(x, object.a.trim() != "")`, "limit"},
		{`object.l.all(x, object.a.reverse() != "")`, "limit"},
		{`object.l.all(x, strings.quote(object.a) != "")`, "limit"},
		{`object.l.all(x, object.a.find("b") == "")`, "limit"},
		{`object.l.all(x, object.l.filter(y, true).size() > 0)`, "limit"},
		{`object.l.all(x, [object.l, object.l].flatten().size() > 0)`, "limit"},
		{`object.l.all(x, isQuantity(object.a) || true)`, "true"},
		{`object.a.matches(object.b)`, "limit"}, // the pattern is as long as the text
		{`object.a.find(object.b) == ""`, "limit"},
		{`object.few.distinct().size() == 900`, "true"},
		{`object.few.all(x, x in object.few)`, "true"},
		// Functions that cel-go counts as one step, whatever they are given.
		{`cel.bind(s, string(object.a), object.l.all(x, s.size() > 0))`, "limit"},
		{`cel.bind(s, string(object.digits), object.l.all(x, double(s) > 0.0))`, "limit"},
		{`object.l.all(x, double(object.digits) > 0.0)`, "limit"},
		{`cel.bind(l, object.l.map(x, 1.0), object.l.all(x, math.greatest(l) > 0.0))`, "limit"},
		{`object.l.all(x, math.greatest(object.one) > 0)`, "limit"},
		{`object.few.transformMap(i, x, {x: i}).size() == 900`, "true"},
		{`object.few.transformMapEntry(i, x, {x: i}).size() == 900`, "true"},
		// Results as long as two texts multiplied: they would not fit into memory.
		{`object.a.replace("a", object.a).size() > 0`, "limit"},
		{`object.a.replace("", object.a).size() > 0`, "limit"},
		{`object.l.join(object.a).size() > 0`, "limit"},
		{`lists.range(size(object.a) * 1000).size() > 0`, "fails"},
		// A list that holds a list many times, which holds another one many times.
		{nested("h == [g,g,g,g,g,g,g,g,g,g]"), "limit"},
		{nested("h != [g,g,g,g,g,g,g,g,g,g]"), "limit"},
		{nested("h.flatten(8).size() > 0"), "limit"},
		{nested(`"%s".format([h]) != ""`), "limit"},
		{nested("h in [[g,g,g,g,g,g,g,g,g,g]]"), "limit"},
		{nested("h.distinct().size() > 0"), "limit"},
		{nested("optional.of(h) == optional.of([g,g,g,g,g,g,g,g,g,g])"), "limit"},
		{nested("{1: h} == {1: [g,g,g,g,g,g,g,g,g,g]}"), "limit"},
		{nested("h"), "limit"},
	} {
		t.Run(short(tc.text), func(t *testing.T) {
			p := compile(t, tc.text, Value)
			var given Input = in
			if tc.want == "limit" {
				given = briefInput{in}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			got, err := p.Eval(context.Background(), given)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			var failed *EvalError
			switch {
			case tc.want == "limit" && (!errors.As(err, &failed) || !strings.Contains(failed.Message, "costs too much")):
				t.Errorf("got %v, %v, want it to cost too much", got, err)
			case tc.want == "fails" && err == nil:
				t.Errorf("got %v, want an error", got)
			case tc.want != "limit" && tc.want != "fails" && (err != nil || fmt.Sprint(got) != tc.want):
				t.Errorf("got %v, %v, want %s", got, err, tc.want)
			}
			if allocated := after.TotalAlloc - before.TotalAlloc; took > slow || allocated > much {
				t.Errorf("took %v, and %d bytes", took, allocated)
			}
		})
	}
}

// short is text that fits the name of a test.
func short(text string) string {
	if len(text) > 80 {
		return text[:20] + "…" + text[len(text)-60:]
	}
	return text
}

// nested is an expression about h, a list of a hundred million items, that is made in no time.
func nested(text string) string {
	list := func(of string) string { return "[" + strings.Repeat(of+",", 9) + of + "]" }
	head, of := "", "object.?one.orValue(1)"
	for name := 'a'; name <= 'h'; name++ {
		head += "cel.bind(" + string(name) + "," + list(of) + ","
		of = string(name)
	}
	return head + text + strings.Repeat(")", 8)
}
