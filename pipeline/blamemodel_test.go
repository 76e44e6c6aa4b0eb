package pipeline

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/sinks"
)

// However many objects of whatever namespaces a sink refuses, for a moment or for good, alone or with the call that they are in, or hangs on:
// all good changes beside them arrive, and of those of other namespaces the p99 is within 5 s, and three time-outs where it hangs, until it is
// clear on what; from 10 s after the sink came back on, if it was away. While it is away, also from 10 s on, it gets its probes only.
func TestModelOfBlame(t *testing.T) {
	const timeout = 2 * time.Second
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue { // each takes thousands of changes
		defer func() { _ = flag.Set(f.Name, f.DefValue) }()
		if err := flag.Set(f.Name, "20"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: 5 * time.Millisecond, perRecord: rapid.Bool().Draw(rt, "per record")}
			hangs := rapid.Bool().Draw(rt, "hangs")
			switch {
			case hangs:
				sink.bad = hang
			case sink.perRecord && rapid.Bool().Draw(rt, "refuses for good"):
				sink.bad = func(context.Context) error {
					return &sinks.Error{Reason: sinks.ReasonRejected, Permanent: true, Err: errDown}
				}
			}
			records := rapid.SampledFrom([]int{1, 10, 100}).Draw(rt, "records")
			p, stop := launch(sink, &letters{}, func(o *Options) {
				tenantLimits(records, 8)(o)
				o.Limits.Timeout = timeout
			})
			defer stop()
			bad, good := rapid.IntRange(1, 3).Draw(rt, "namespaces of bad ones"), rapid.IntRange(1, 3).Draw(rt, "of good ones")
			shared := !hangs && rapid.Bool().Draw(rt, "another is the same") // on which the sink hangs, others of their namespace wait
			sent, all, n := map[string]time.Time{}, []string(nil), 0
			works := time.Now()
			// phase lets 50 good changes a second come, and so many bad ones.
			phase := func(d time.Duration, objects int) {
				for begun, made := time.Now(), 0; time.Since(begun) < d; time.Sleep(20 * time.Millisecond) {
					for ; float64(made) < float64(objects)*min(1, 2*time.Since(begun).Seconds()/d.Seconds()); made++ {
						n++
						mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", n%bad), fmt.Sprint("bad-", n), n))
					}
					n++
					namespace, name := fmt.Sprint("good-", n%good), fmt.Sprint("good-", n)
					if shared && n%(good+1) == 0 {
						namespace = "tenant-0"
					} else if time.Since(works) > 10*time.Second {
						sent[name] = time.Now()
					}
					all = append(all, name)
					mustTake(t, p, changeIn(t, namespace, name, n))
				}
			}
			set := func(away bool) (calls int) {
				sink.mu.Lock()
				defer sink.mu.Unlock()
				sink.away = away
				return sink.calls
			}
			objects := rapid.SampledFrom([]int{0, 3, 40, 1000})
			phase(15*time.Second, objects.Draw(rt, "objects"))
			if rapid.Bool().Draw(rt, "away") {
				set(true)
				works = time.Now().Add(time.Hour)
				phase(10*time.Second, objects.Draw(rt, "more"))
				before := set(true)
				if phase(15*time.Second, 0); set(false)-before > 15 {
					rt.Errorf("%d calls in 15 s while it was away", set(false)-before)
				}
				works = time.Now()
			}
			phase(25*time.Second, objects.Draw(rt, "objects in the end"))
			time.Sleep(30 * time.Second)
			sink.mu.Lock()
			defer sink.mu.Unlock()
			for _, name := range all {
				if sink.took[name].IsZero() {
					rt.Fatalf("%s did not arrive", name)
				}
			}
			var waits []time.Duration
			for name, at := range sent {
				waits = append(waits, sink.took[name].Sub(at))
			}
			slices.Sort(waits)
			most := 5 * time.Second
			if hangs {
				most += 3 * timeout
			}
			if p99 := waits[len(waits)*99/100]; p99 > most {
				rt.Errorf("the p99 of good changes is %v", p99)
			}
		})
	})
}
