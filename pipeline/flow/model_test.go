package flow

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Whatever sinks answer, and in whatever order calls end: records of an object are settled in order, one batch at a time holds an object, nothing is
// forgotten, and once the sink works all is settled soon.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		calls := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "calls")
		slots := NewSlots(calls)
		s := New(Options{
			Records: rapid.SampledFrom([]int{1, 3, 100}).Draw(t, "records"), Calls: calls, Share: slots.Share(func() {}),
			OnePerObject: rapid.Bool().Draw(t, "one"), Initial: 100 * time.Millisecond, Max: 30 * time.Second,
			Attempts: rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "attempts"), Random: func() float64 { return 0.5 },
		})
		now := epoch
		added, settled := map[delta.Ref]int{}, map[delta.Ref]int{}
		held := map[delta.Ref]bool{}
		type call struct {
			b     *Batch
			began time.Time
		}
		var under []call
		waiting := 0

		next := func() *Batch {
			size, most := 0, rapid.IntRange(1, 12).Draw(t, "room")
			fits := func(i *Item) bool {
				size += 1 + i.Value.(int)%5
				return size <= most || size == 1+i.Value.(int)%5
			}
			b, wake := s.Next(now, fits)
			if b == nil {
				if !wake.IsZero() && wake.Before(now) {
					t.Fatalf("wakes at %v, before %v", wake, now)
				}
				return nil
			}
			s.Fill(b, now, fits)
			for n, i := range b.Items {
				if n > 0 && b.Items[n-1].Ref == i.Ref {
					continue
				}
				if held[i.Ref] {
					t.Fatalf("two batches hold %v", i.Ref)
				}
				held[i.Ref] = true
				if i.Value.(int) != settled[i.Ref]+1 {
					t.Fatalf("%v begins with %v behind %d", i.Ref, i.Value, settled[i.Ref])
				}
			}
			under = append(under, call{b, now})
			return b
		}
		end := func(k int, verdict func() Verdict) {
			c := under[k]
			under = append(under[:k], under[k+1:]...)
			results := make([]Result, len(c.b.Items))
			all, whole := verdict(), rapid.Bool().Draw(t, "whole call")
			for n := range results {
				results[n].Verdict = all
				if !whole && all != Cancelled {
					results[n].Verdict = verdict() % Cancelled
				}
				if behind := n > 0 && c.b.Items[n-1].Ref == c.b.Items[n].Ref; behind && !whole && results[n-1].Verdict != Acknowledged {
					results[n].Verdict = Failed // a sink sends nothing of an object behind what it could not send
				}
				if results[n].Verdict == Failed && rapid.IntRange(0, 5).Draw(t, "delay") == 0 {
					results[n].RetryAfter = 3 * time.Second
				}
			}
			s.Judge(c.b, results, now.Sub(c.began), now)
			behind := map[delta.Ref]bool{}
			for n, i := range c.b.Items {
				delete(held, i.Ref)
				if c.b.Outcomes[n] == Letter && rapid.IntRange(0, 9).Draw(t, "letter") == 0 {
					c.b.Outcomes[n] = Waits // its letter could not be written
				}
				if c.b.Outcomes[n] == Waits {
					behind[i.Ref] = true
					continue
				}
				if c.b.Outcomes[n] == Letter && behind[i.Ref] {
					c.b.Outcomes[n] = Waits
					continue
				}
				if !behind[i.Ref] && i.Value.(int) != settled[i.Ref]+1 {
					t.Fatalf("%v: %v is settled after %d", i.Ref, i.Value, settled[i.Ref])
				}
				settled[i.Ref] = max(settled[i.Ref], i.Value.(int))
				waiting--
			}
			s.Done(c.b, now)
		}
		whole := func() Verdict { return Verdict(rapid.IntRange(0, int(Cancelled)).Draw(t, "verdict")) }
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 4:
				for range rapid.IntRange(1, 5).Draw(t, "n") {
					flow := fmt.Sprint("ns", rapid.IntRange(0, 3).Draw(t, "flow"))
					r := delta.Ref{Namespace: flow, Name: fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "name"))}
					added[r]++
					waiting++
					s.Add(&Item{Ref: r, Flow: flow, Value: added[r]}, now)
				}
			case op < 7:
				next()
			case op < 9 && len(under) > 0:
				end(rapid.IntRange(0, len(under)-1).Draw(t, "which"), whole)
			default:
				now = now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
			}
		}
		works := func() Verdict { return Acknowledged }
		for start := now; waiting > 0; {
			for next() != nil {
			}
			if len(under) > 0 {
				end(0, works)
				continue
			}
			now = now.Add(50 * time.Millisecond)
			if now.Sub(start) > 2*time.Minute {
				t.Fatalf("%d wait: %+v", waiting, s)
			}
		}
		if len(s.objects) > 0 || len(under) > 0 || slots.taken > 0 || s.calls > 0 {
			t.Fatalf("%d objects are left, %d slots", len(s.objects), slots.taken)
		}
		for _, f := range s.flows {
			if f.failing > 0 || f.calls > 0 || f.retries > 0 || f.objects > 0 {
				t.Fatalf("a flow is left with %+v", f)
			}
		}
	})
}
