package pipeline

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/sinks"
)

// Whatever a sink answers, each delta is delivered or becomes a dead letter, in order per object, no two calls hold
// the same object, the backlog keeps its bound, and the counts balance at every moment.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed of the sink and of the pauses")
		weights := map[string]int{
			"accept": rapid.IntRange(1, 10).Draw(rt, "accept"), "down": rapid.IntRange(0, 3).Draw(rt, "down"),
			"partly": rapid.IntRange(0, 5).Draw(rt, "partly"), "refuse": rapid.IntRange(0, 2).Draw(rt, "refuse"),
		}
		maxBytes := int64(rapid.SampledFrom([]int{1, 4 << 10, 64 << 10}).Draw(rt, "bound"))
		limits := sinks.Limits{
			MaxRecords:  rapid.IntRange(1, 8).Draw(rt, "records"),
			MaxBytes:    int64(rapid.SampledFrom([]int{1, 2000, 1 << 20}).Draw(rt, "bytes")),
			Linger:      time.Duration(rapid.IntRange(0, 1).Draw(rt, "linger")) * time.Millisecond,
			Concurrency: rapid.IntRange(1, 4).Draw(rt, "concurrency"), Timeout: time.Second,
			OnePerKey: rapid.Bool().Draw(rt, "one per key"),
		}
		attempts := rapid.SampledFrom([]int{0, 0, 2}).Draw(rt, "attempts")
		objects := rapid.IntRange(1, 10).Draw(rt, "objects")
		namespaces := rapid.IntRange(1, 4).Draw(rt, "namespaces")
		total := rapid.IntRange(1, 200).Draw(rt, "deltas")
		outage := time.Duration(rapid.IntRange(0, 5).Draw(rt, "ms")) * time.Millisecond

		// With a fake clock, since probes of a sink that is away are 1.5 s apart.
		passed := t.Run("", inBubble(func(t *testing.T) {
			sink, dead := &script{}, &letters{}
			p, stop := launch(sink, dead, func(o *Options) {
				o.MaxBytes, o.Limits = maxBytes, limits
				o.Retry = Retry{Initial: 100 * time.Microsecond, Max: time.Millisecond, Attempts: attempts}
			})
			defer stop()
			observe := func() {
				if s := p.Stats(); !s.Balanced() || s.Bytes > max(maxBytes, 1) {
					t.Errorf("bound %d: %+v", maxBytes, s)
				}
			}
			answer := faulty(seed, weights)
			sink.set(func(call int, batch []sinks.Record) error {
				observe()
				return answer(call, batch)
			})
			var want []string
			random := rand.New(rand.NewPCG(seed, 2))
			for version := 1; version <= total; version++ {
				object := version % objects
				d := changeIn(t, fmt.Sprint("n", object%namespaces), fmt.Sprint("o", object), version)
				want = append(want, d.ID("c"))
				mustTake(t, p, d)
				observe()
				if random.IntN(3) == 0 { // so that retries and the linger end between any two deltas
					time.Sleep(time.Duration(random.IntN(300)) * time.Microsecond)
				}
			}
			time.Sleep(outage)
			sink.set(func(int, []sinks.Record) error { observe(); return nil }) // every outage ends
			drain(t, p)

			stored := sink.storedIDs()
			checkOrder(t, stored)
			settled := map[string]int{}
			for _, id := range append(stored, dead.ids()...) {
				settled[id]++
			}
			for _, id := range want {
				if settled[id] != 1 { // this sink never acknowledges without telling
					t.Fatalf("%s was settled %d times", id, settled[id])
				}
			}
			if len(sink.overlaps) > 0 {
				t.Fatalf("two calls held the same object: %v", sink.overlaps)
			}
		}))
		if !passed {
			rt.FailNow()
		}
	})
}

func inBubble(f func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

// faulty answers calls by chance, keeping the rule that nothing is acknowledged after a failure of the same key.
func faulty(seed uint64, weights map[string]int) func(int, []sinks.Record) error {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	var choices []string
	for _, choice := range []string{"accept", "down", "partly", "refuse"} {
		for range weights[choice] {
			choices = append(choices, choice)
		}
	}
	return func(_ int, batch []sinks.Record) error {
		mu.Lock()
		defer mu.Unlock()
		switch choices[random.IntN(len(choices))] {
		case "down":
			return errDown
		case "refuse":
			return sinks.Permanent(sinks.ReasonRejected, errors.New("400"))
		case "partly":
			errs, failed := make([]error, len(batch)), map[string]bool{}
			faulty := false
			for n, record := range batch {
				switch {
				case failed[record.Key] || random.IntN(3) == 0:
					errs[n], failed[record.Key] = errDown, true
				case random.IntN(5) == 0:
					errs[n] = sinks.Permanent(sinks.ReasonTooLarge, errors.New("413"))
				}
				faulty = faulty || errs[n] != nil
			}
			if faulty {
				return &sinks.BatchError{Errs: errs}
			}
		}
		return nil
	}
}
